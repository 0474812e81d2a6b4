"""The ./tt script with a stand-in for Python, so that no package is downloaded."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Makes "environments" whose Python is a copy of itself; what its pip does is told by FAKE_PIP.
FAKE_PYTHON = f"""#!/bin/sh
case "$1 $2" in
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip")
    echo "$@" >>"$FAKE_LOG"
    case "$FAKE_PIP" in
    slow) echo "Collecting numpy"; sleep 60 & echo $! >"$FAKE_LOG.pid"; wait ;;
    offline) echo "NewConnectionError: Network is unreachable"; exit 1 ;;
    full) echo "OSError: [Errno 28] No space left on device"; exit 1 ;;
    broken) echo "ERROR: No matching distribution found for numpy"; exit 1 ;;
    esac ;;
"-c import pip"*) [ -f "$FAKE_LOG" ] ;;
"-c import sysconfig"*) packages=${{0%/bin/*}}/lib/python3.11/site-packages; mkdir -p "$packages"; echo "$packages" ;;
*) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def tree(tmp_path):
    """A copy of what the script needs of the source tree."""
    folder = tmp_path / "source tree"
    folder.mkdir()
    for name in ("tt", "requirements.txt", "requirements-dev.txt", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    fake = tmp_path / "python"
    fake.write_text(FAKE_PYTHON)
    fake.chmod(0o755)
    # The environment asks Python where packages go; the answer must lie in the environment.
    program = folder / "print.py"
    program.write_text("import os, sys; print(os.environ['AMENT_PREFIX_PATH'], *sys.argv[1:])")
    return folder


def start(tree: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    values = {
        **os.environ,
        "FAKE_LOG": str(tree / "pip.log"),
        "TT_PYTHON": str(tree.parent / "python"),
        **environment,
    }
    values.pop("TT_VENV", None)
    return subprocess.Popen(
        [str(tree / "tt"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=values,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def complete(tree: Path) -> Path:
    """Makes an environment that looks finished, with a program that tells what it was given."""
    environment = tree / ".venv"
    (environment / "bin").mkdir(parents=True)
    # Never the real Python: its pip would install into this very machine.
    shutil.copy(tree.parent / "python", environment / "bin" / "python")
    (tree / "pip.log").touch()
    program = "import os, sys\nnames = [os.environ.get(name) for name in sys.argv[1].split()]\n"
    program += "print(os.getpid(), *names, *sys.argv[2:])\n"
    (environment / "bin" / "tt").write_text(program)
    files = "requirements.txt requirements-dev.txt constraints.txt"
    stamp = subprocess.run(
        f"cat {files} | cksum", shell=True, cwd=tree, capture_output=True, text=True, check=True
    )
    (environment / ".tt-complete").write_text(f"{tree}\n{stamp.stdout}")
    return environment


def test_a_finished_environment_is_used_at_once(tree):
    environment = complete(tree)
    names = "ROS_AUTOMATIC_DISCOVERY_RANGE AMENT_PREFIX_PATH PYTHONPATH FASTRTPS_DEFAULT_PROFILES_FILE"
    clean = {
        "AMENT_PREFIX_PATH": "/opt/ros/x",
        "PYTHONPATH": "/opt/ros/x",
        "FASTRTPS_DEFAULT_PROFILES_FILE": "",
    }
    process = start(tree, names, "two words", "--json", ROS_AUTOMATIC_DISCOVERY_RANGE="", **clean)
    code, out, err = finish(process)
    assert (code, err) == (0, "")
    pid, rest = out.strip().split(" ", 1)
    assert int(pid) == process.pid, "signals must reach the program"
    profile = tree / "tt_bringup" / "config" / "fastdds.xml"
    assert rest == f"LOCALHOST {environment}:/opt/ros/x None {profile} two words --json"


def test_changed_pins_or_a_moved_tree_make_it_anew(tree, tmp_path):
    complete(tree)
    (tree / "constraints.txt").write_text("numpy==1.0\n")
    _, _, err = finish(start(tree, FAKE_PIP="offline"))
    assert "environment" in err
    moved = tmp_path / "moved"
    shutil.copy(ROOT / "constraints.txt", tree / "constraints.txt")
    tree.rename(moved)
    _, _, err = finish(start(moved, FAKE_PIP="offline"))
    assert "environment" in err


@pytest.mark.parametrize(
    ("pip", "words"),
    [
        ("offline", "cannot reach the Python package index"),
        ("full", "no space left"),
        ("broken", "set-up failed: ERROR: No matching distribution found for numpy"),
    ],
)
def test_a_failed_set_up_is_one_clear_line_and_is_taken_up_again(tree, pip, words):
    code, out, err = finish(start(tree, "--help", FAKE_PIP=pip))
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if "making the environment" not in line]
    assert len(lines) == 1 and words in lines[0]
    code, _, err = finish(start(tree, "--help", FAKE_PIP=pip))
    assert code == 2 and "completing the environment" in err


def test_packages_that_were_cut_off_are_installed_again(tree):
    finish(start(tree, FAKE_PIP="broken"))
    packages = tree / ".venv" / "lib" / "python3.11" / "site-packages"
    for name in ("whole", "torn"):
        (packages / f"{name}-1.0.dist-info").mkdir(parents=True)
        (packages / f"{name}-1.0.dist-info" / "METADATA").touch()
    (packages / "whole-1.0.dist-info" / "INSTALLER").touch()
    finish(start(tree, FAKE_PIP="broken"))
    assert [path.name for path in packages.iterdir()] == ["whole-1.0.dist-info"]


def test_an_interrupted_set_up_ends_pip_and_says_how_to_go_on(tree):
    process = start(tree, FAKE_PIP="slow")
    log = tree / "pip.log.pid"
    end = time.monotonic() + 20.0
    while not (log.exists() and log.read_text().strip()):
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    code, _, err = finish(process)
    os.kill(int(log.read_text()), signal.SIGKILL)
    assert code == 130
    assert "interrupted; the next call completes the set-up" in err
    assert not (tree / ".venv" / ".tt-complete").exists()


def test_a_second_first_call_waits_for_the_first(tree):
    first = start(tree, FAKE_PIP="slow")
    end = time.monotonic() + 20.0
    while not (tree / "pip.log.pid").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    second = start(tree, FAKE_PIP="offline")
    assert "waiting for it" in second.stderr.readline()
    os.killpg(first.pid, signal.SIGKILL)
    finish(first)
    code, _, err = finish(second)
    assert code == 2 and "cannot reach" in err, "it took the work over"


def test_no_python_is_one_clear_line(tree, tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "sh",
        "dirname",
        "readlink",
        "cat",
        "cksum",
        "mkdir",
        "flock",
        "uname",
        "rm",
        "sed",
        "tail",
        "grep",
    ):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    home = {"HOME": str(tmp_path), "PYENV_ROOT": str(tmp_path), "PATH": str(tools)}
    code, out, err = finish(start(tree, TT_PYTHON="/nowhere/python3", **home))
    assert (code, out) == (2, "")
    assert err == "tt: TT_PYTHON is '/nowhere/python3', which is no Python 3.10 to 3.13 with venv\n"


def test_worker_processes_load_the_program_without_running_it():
    program = Path(sys.prefix) / "bin" / "tt"
    if not program.is_file():
        pytest.skip("these tests were not started by ./tt, nor is tt installed beside this Python")
    assert "main" in runpy.run_path(str(program), run_name="__mp_main__")
