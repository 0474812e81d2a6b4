"""The command table: quick help, one-line errors, exit codes, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tt_bringup import cli
from tt_bringup.cli import COMMANDS, Command, complete, find_verb
from tt_perception.errors import TTError


def run(*words, **environment):
    command = [sys.executable, "-m", "tt_bringup.cli", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=300
    )


def call(capsys, monkeypatch, function, *words):
    """Runs one command that is made of a function of this module."""
    monkeypatch.setitem(COMMANDS, "probe", Command(__name__, "A probe.", function.__name__))
    with pytest.raises(SystemExit) as end:
        cli.main(["probe", *words])
    out = capsys.readouterr()
    return end.value.code, out.out, out.err


def fails_on_bad_input(number: int = 3) -> None:
    raise TTError(f"number is {number}, but must be 4;\n  take 4")


def has_a_bug() -> None:
    raise ZeroDivisionError("division by zero")


def misses_a_file() -> None:
    Path("/nowhere/at/all").read_text()


def is_interrupted() -> None:
    raise KeyboardInterrupt


def works(number: int = 3) -> None:
    print(number)


@pytest.mark.parametrize(
    ("function", "code", "line"),
    [
        (fails_on_bad_input, 2, "tt: number is 3, but must be 4; take 4"),
        (misses_a_file, 2, "tt: /nowhere/at/all: No such file or directory"),
        (is_interrupted, 130, ""),
    ],
)
def test_errors_are_one_line(capsys, monkeypatch, function, code, line):
    assert call(capsys, monkeypatch, function) == (code, "", f"{line}\n" if line else "")


def test_a_bug_is_one_line_that_says_where(capsys, monkeypatch):
    code, _, err = call(capsys, monkeypatch, has_a_bug)
    assert code == 1 and err.count("\n") == 1
    assert "ZeroDivisionError: division by zero (test_cli.py:" in err and "TT_TRACEBACK=1" in err


def test_options_reach_the_command(capsys, monkeypatch):
    assert call(capsys, monkeypatch, works, "--number", "7")[:2] == (0, "7\n")
    code, out, err = call(capsys, monkeypatch, works, "--number", "seven")
    assert code == 2 and not out and err.count("\n") == 1 and "--number seven" in err


@pytest.mark.parametrize(
    "words",
    ["sim --delay nan", "record --duration inf", "replay bag --start -inf", "identify bag --pressure inf",
     "calibrate intrinsics --square nan", "control design --natural nan"],
)  # fmt: skip
def test_no_command_takes_numbers_that_are_not_finite(capsys, words):
    with pytest.raises(SystemExit) as end:
        cli.main(words.split())
    assert end.value.code == 2
    _, option, value = words.rsplit(maxsplit=2)
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and value in err and option[2:] in err


def test_the_longest_verb_wins():
    assert find_verb(["sim", "bus", "--json"]) == "sim bus"
    assert find_verb(["sim", "--balls", "3"]) == "sim"
    assert find_verb(["nothing"]) is None


def test_help_lists_every_command_and_imports_none():
    code = "import sys, tt_bringup.cli as c; c._run(['--help']); sys.exit('typer' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert all(f"  {verb} " in result.stdout for verb in COMMANDS)


def test_group_help_lists_its_members():
    result = run("eval")
    assert result.returncode == 0 and "eval returns" in result.stdout and "record" not in result.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["smi"], "'smi' is no command; did you mean 'sim'? (tt --help lists them)"),
        (["eval", "retrns"], "'retrns' is no command of tt eval; did you mean 'returns'?"),
    ],
)
def test_unknown_commands_name_the_nearest_one(words, line):
    result = run(*words)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"tt: {line}\n")


@pytest.mark.parametrize("verb", list(COMMANDS))
def test_every_command_explains_itself(verb):
    command = cli.load_command(verb)
    assert command.help, f"tt {verb} has no help text"


def test_version_is_the_one_of_the_package():
    from xml.etree import ElementTree

    import tt_bringup

    manifest = Path(__file__).resolve().parents[2] / "package.xml"
    version = ElementTree.parse(manifest).getroot().findtext("version")
    assert run("--version").stdout == f"tt {version}\n" == f"tt {tt_bringup.__version__}\n"
    assert json.loads(run("--version", "--json").stdout) == {"version": version}


@pytest.mark.parametrize(
    "words", [("--help",), ("topics",), ("params",), ("doctor",), ("calibrate", "--help"), ("sim", "--help")]
)
def test_pages_are_read_at_80_columns(words):
    environment = {**os.environ, "COLUMNS": "80"}
    environment.pop("TERMINAL_WIDTH", None)
    command = [sys.executable, "-m", "tt_bringup.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    lines = [line for line in done.stdout.splitlines() if "fix:" not in line]  # commands stay in one piece
    assert len(lines) > 3
    assert [line for line in lines if len(line) > 80] == []


def test_completion_follows_the_table():
    assert complete(["ev"]) == ["eval"]
    assert complete(["eval", ""]) == ["estimation", "perception", "returns"]
    assert "--json" in complete(["topics", "--"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_exist(shell):
    result = run("--show-completion", shell)
    assert result.returncode == 0 and "TT_COMPLETE" in result.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("sim --robot ", ["arm6", "gantry4", "gantry5"]),
        ("sim --robot gantry5 --world d", ["deepmind"]),
        ("calibrate ", ["check", "extrinsics", "intrinsics", "joints", "time-offset"]),
        ("calibrate intrinsics --b", ["--backend", "--board"]),
        ("calibrate extrinsics --method ", ["ball", "board", "table"]),
        ("sim --headless ", []),
        ("sim --record ", []),
        ("sim --robot ./my", []),
    ],
)
def test_values_and_subcommands_are_offered_and_files_left_to_the_shell(words, offered):
    assert complete(words.split(" ")) == offered


def test_offered_values_are_those_that_are_taken():
    from tt_bringup import choices, replay
    from tt_control.moteus_devices import TRANSPORTS
    from tt_estimation.ball_models import MODELS
    from tt_estimation.identify import LAWS
    from tt_perception.calibration.boards import KINDS
    from tt_planning.planners import PLANNERS

    pairs = (
        (choices.beginnings, replay.BEGINNINGS),
        (choices.boards, KINDS),
        (choices.laws, LAWS),
        (choices.planners, PLANNERS),
        (choices.transports, TRANSPORTS),
        (choices.worlds, MODELS),
    )
    assert all(sorted(offered("")) == sorted(taken) for offered, taken in pairs)


@pytest.mark.parametrize("command", ["calibrate", "calibrate intrinsics", "calibrate joints", "sim"])
@pytest.mark.parametrize("wrong", ["--bogus", "--backend"])
def test_a_wrong_option_points_to_the_help_that_lists_the_right_ones(capsys, command, wrong):
    assert cli._guarded([*command.split(), wrong]) == 2
    assert f"(tt {command} --help)" in capsys.readouterr().err


def test_bash_completes_with_the_script(tmp_path):
    script = run("--show-completion", "bash").stdout
    tt = tmp_path / "tt"
    tt.write_text(f'#!/bin/sh\nexec {sys.executable} -m tt_bringup.cli "$@"\n')
    tt.chmod(0o755)
    code = f'{script}\nCOMP_WORDS=({tt} eval re) COMP_CWORD=2\n_tt\necho "${{COMPREPLY[@]}}"'
    result = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "returns\n"
