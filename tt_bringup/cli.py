"""The `tt` command: a table of verbs whose modules are imported only when they are used.

The table answers `tt --help` without importing any command; a verb's own arguments are parsed by typer. Every
error that a user can cause is one line on stderr and exit code 2.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from tt_bringup.environment import TRACEBACK_ENV, apply_defaults, checked_domain, running_domains
from tt_bringup.names import nearest
from tt_bringup.terminal import COLUMNS
from tt_perception.errors import TTError

PROGRAM = "tt"
EXIT_OK, EXIT_BUG, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 1, 2, 130
COMPLETE_ENV = "TT_COMPLETE"


class Command(NamedTuple):
    """One verb.

    Attributes:
        module: module with `app` (a typer.Typer) or `main` (a function with typer annotations).
        help: one line.
        function: name of the function when the module holds several verbs; empty for `app` or `main`.
    """

    module: str
    help: str
    function: str = ""


# These listen to a graph that runs already.
JOINING = ("record", "replay", "latency", "view")

COMMANDS: dict[str, Command] = {
    "sim": Command("tt_bringup.commands.sim", "Play balls against the simulated robot."),
    "sim bus": Command("tt_bringup.commands.sim_bus", "Offer simulated motor boards on a pseudo-terminal."),
    "robot": Command("tt_bringup.commands.robot", "Run the stack on the real robot."),
    "jog": Command("tt_bringup.commands.jog", "Move single joints slowly, for bring-up."),
    "control design": Command(
        "tt_bringup.commands.control_design", "Gains of the joints from frequency and damping."
    ),
    "calibrate": Command("tt_bringup.commands.calibrate", "Calibrate cameras: intrinsics, extrinsics."),
    "calibrate joints": Command(
        "tt_bringup.commands.calibrate_joints", "Find inertia and friction of the joints."
    ),
    "identify": Command("tt_bringup.commands.identify", "Find ball constants from recorded flights."),
    "record": Command("tt_bringup.commands.record", "Record all topics to a bag."),
    "replay": Command("tt_bringup.commands.replay", "Play a bag into the live graph or the pure pipeline."),
    "report": Command("tt_bringup.commands.report", "Write one HTML page about a bag."),
    "latency": Command("tt_bringup.commands.latency", "Show where the milliseconds go."),
    "view": Command("tt_bringup.commands.view", "Show the scene in a browser."),
    "doctor": Command("tt_bringup.commands.doctor", "Check this machine, with the fix for each red line."),
    "eval returns": Command("tt_bringup.commands.eval_returns", "Measure how many balls are returned."),
    "eval estimation": Command("tt_bringup.commands.eval_estimation", "Measure state and prediction errors."),
    "eval perception": Command("tt_bringup.commands.eval_perception", "Measure detection and triangulation."),
    "bench": Command("tt_bringup.commands.bench", "Time the computing stages on this machine."),
    "bench all": Command("tt_bringup.commands.bench_all", "Time everything that the docs give a figure for."),
    "bench bus": Command("tt_bringup.commands.bench_bus", "Time one cycle of the motor bus."),
    "bench loop": Command(
        "tt_bringup.commands.bench_loop", "Time the motor loop beside the whole simulation."
    ),
    "bench stops": Command(
        "tt_bringup.commands.bench_stops", "Time the stop when a board or the motor process dies."
    ),
    "params": Command("tt_bringup.commands.params", "Print the parameters of the nodes as YAML templates."),
    "topics": Command("tt_bringup.commands.topics", "Print the topic table."),
    "test": Command("tt_bringup.commands.test", "Run the tests."),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line; ends the process with its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    apply_defaults(os.environ)
    try:
        code = _guarded(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone (`tt ... | head`); without this Python complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_OK
    gc.freeze()  # or Python goes through a whole recording for garbage once more before it ends, half a second
    sys.exit(code)


def _guarded(words: list[str]) -> int:
    try:
        return _run(words)
    except TTError as error:
        return _complain(_one_line(error), EXIT_BAD_INPUT)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        raise
    except OSError as error:
        if os.environ.get(TRACEBACK_ENV):
            raise
        what = f"{error.filename}: " if error.filename else ""
        return _complain(f"{what}{error.strerror or error}", EXIT_BAD_INPUT)
    except Exception as error:
        if os.environ.get(TRACEBACK_ENV):
            raise
        return _complain(
            f"internal error, please report it: {type(error).__name__}: "
            f"{_one_line(error)} ({_place(error)}); {TRACEBACK_ENV}=1 shows the whole trace",
            EXIT_BUG,
        )


def _run(words: list[str]) -> int:
    if os.environ.get(COMPLETE_ENV):
        sys.stdout.writelines(
            f"{word}\n" for word in complete(words)
        )  # no line at all lets the shell look for files
        return EXIT_OK
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help(""))
        return EXIT_OK
    if words[0] == "--version":
        print(json.dumps({"version": _version()}) if "--json" in words else f"{PROGRAM} {_version()}")
        return EXIT_OK
    if words[0] == "--show-completion":
        print(
            _completion_script(words[1] if len(words) > 1 else os.path.basename(os.environ.get("SHELL", "")))
        )
        return EXIT_OK
    verb = find_verb(words)
    if verb is None:
        return _no_verb(words)
    return run_verb(verb, words[len(verb.split()) :])


def find_verb(words: Sequence[str]) -> str | None:
    """The longest verb of the table that the words begin with, e.g. `sim bus`; None when there is none."""
    for count in (2, 1):
        verb = " ".join(words[:count])
        if len(words) >= count and verb in COMMANDS:
            return verb
    return None


def run_verb(verb: str, arguments: Sequence[str]) -> int:
    """Runs one command; returns its exit code."""
    if "" in arguments:
        before = arguments[arguments.index("") - 1] if arguments[0] else ""
        name = before if before.startswith("-") else "an argument"
        return _complain(f"{verb}: {name} is empty; a variable of the shell may not be set", EXIT_BAD_INPUT)
    if verb in JOINING:
        _join_running_graph()
    if not os.isatty(1):
        # Help pages keep their shape in files and pipes.
        os.environ.setdefault("TERMINAL_WIDTH", str(COLUMNS))
        if not os.environ.get("FORCE_COLOR"):
            os.environ.setdefault("_TYPER_FORCE_DISABLE_TERMINAL", "1")  # typer colours the logs of some CI
    command = load_command(verb)
    try:
        code = command.main(args=list(arguments), prog_name=f"{PROGRAM} {verb}", standalone_mode=False)
    except SystemExit as end:
        code = end.code if end.code is None or isinstance(end.code, int) else EXIT_BUG
    except Exception as error:
        # Some versions of typer bring a copy of click: its errors are told by their shape, not by class.
        if type(error).__name__ == "Abort":
            return EXIT_INTERRUPTED
        if hasattr(error, "format_message"):
            line = f"{verb} {' '.join(arguments)}".strip()
            part = arguments[0] if arguments and arguments[0] in getattr(command, "commands", ()) else ""
            asked = f"{PROGRAM} {verb} {part}".strip()
            return _complain(f"{line:.160}: {error.format_message()} ({asked} --help)", EXIT_BAD_INPUT)
        raise
    return code if isinstance(code, int) else EXIT_OK


def _join_running_graph() -> None:
    """Lets the live commands find the graph of another terminal, which has a ROS domain to itself."""
    if domain := os.environ.get("ROS_DOMAIN_ID"):
        checked_domain(domain)
        return
    domains = running_domains()
    if len(domains) == 1:
        os.environ["ROS_DOMAIN_ID"] = str(domains[0])
    elif domains:
        numbers = ", ".join(map(str, domains))
        print(f"{PROGRAM}: several graphs run here; set ROS_DOMAIN_ID to one of {numbers}", file=sys.stderr)


def load_command(verb: str) -> Any:
    """Imports the module of a verb and makes its parser.

    Raises:
        TTError: the verb, or a package that it needs, is not part of this installation.
    """
    import typer

    entry = COMMANDS[verb]
    try:
        module = importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        if error.name == entry.module:
            raise TTError(f"{PROGRAM} {verb} is not part of this version") from error
        raise TTError(
            f"{PROGRAM} {verb} needs the Python package {error.name!r}, which is not installed here; "
            f"./{PROGRAM} at the root of the source tree installs everything"
        ) from error
    app = getattr(module, "app", None)
    if app is None or entry.function:
        app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
        app.command(help=None)(getattr(module, entry.function or "main"))
    for command in app.registered_commands:
        command.callback = _with_finite_numbers(command.callback)
    return typer.main.get_command(app)


def _with_finite_numbers(function: Any) -> Any:
    """The same function, which refuses nan and inf: not every version of typer keeps them out of a range."""

    @functools.wraps(function)
    def checked(**values: Any) -> Any:
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise TTError(f"{name.replace('_', ' ')} is {value}, but must be a finite number")
        return function(**values)

    return checked


def complete(words: Sequence[str]) -> list[str]:
    """Candidates for the last of the words on the command line (empty when a new word begins)."""
    before, last = list(words[:-1]), (words[-1] if words else "")
    verb, depth = find_verb(before), len(before)
    offered = {
        verb_words[depth]
        for verb_words in (name.split() for name in COMMANDS)
        if len(verb_words) > depth and verb_words[:depth] == before
    }
    if verb is not None:
        offered |= _offered_by(verb, before[len(verb.split()) :], last)
    elif last.startswith("-"):
        offered = {"--help", "--version", "--show-completion"}
    return sorted(word for word in offered if word.startswith(last))


def _offered_by(verb: str, rest: list[str], last: str) -> set[str]:
    """Subcommands, options or values of an option that the parser of a verb knows; nothing for files."""
    command = load_command(verb)
    parts = getattr(command, "commands", {})
    if not rest and not last.startswith("-"):
        return set(parts)
    command = parts.get(rest[0], command) if rest else command
    if last.startswith("-"):
        return {name for item in command.params for name in (*item.opts, *item.secondary_opts)}
    for item in command.params:
        if rest[-1] in item.opts and not getattr(item, "is_flag", False):
            found = item.shell_complete(command.context_class(command), last)
            return {value.value for value in found if value.type == "plain"}
    return set()


def _no_verb(words: list[str]) -> int:
    group = words[0]
    members = [name for name in COMMANDS if name.startswith(group + " ")]
    if members and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(_help(group))
        return EXIT_OK
    if members:
        known = [name.split()[1] for name in members]
        return _complain(f"{nearest(words[1], known, f'command of {PROGRAM} {group}')}", EXIT_BAD_INPUT)
    known = sorted({name.split()[0] for name in COMMANDS})
    return _complain(f"{nearest(group, known, 'command')} ({PROGRAM} --help lists them)", EXIT_BAD_INPUT)


def _help(group: str) -> str:
    start = f"{group} " if group else ""
    rows = [(name, entry.help) for name, entry in COMMANDS.items() if name.startswith(start)]
    width = max(len(name) for name, _ in rows)
    lines = [
        f"usage: {PROGRAM} {start}COMMAND [OPTIONS]",
        "",
        "A table tennis robot, real or simulated: sees a ball and returns it.",
        "",
        *(f"  {name:<{width}}  {text}" for name, text in rows),
        "",
        f"{PROGRAM} COMMAND --help explains a command. Start with: {PROGRAM} sim --balls 10",
        "--version prints the version, --show-completion bash|zsh|fish a script for it.",
    ]
    return "\n".join(lines)


def _completion_script(shell: str) -> str:
    call = f'{COMPLETE_ENV}=1 "${{COMP_WORDS[0]}}"'
    scripts = {
        "bash": f"_tt() {{ mapfile -t COMPREPLY < <({call} "
        '"${COMP_WORDS[@]:1:$COMP_CWORD}" 2>/dev/null); }\n'
        "complete -o default -F _tt tt ./tt",
        "zsh": '#compdef tt\n_tt() { local -a found; found=(${(f)"$('
        f'{COMPLETE_ENV}=1 ${{words[1]}} "${{words[@]:1:$((CURRENT-1))}}" 2>/dev/null)"}}); '
        "compadd -a found || _files; }\ncompdef _tt tt",
        "fish": f"complete -c tt -a '({COMPLETE_ENV}=1 tt "
        "(commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'",
    }
    if shell not in scripts:
        raise TTError(f"no completion for shell {shell!r}; there is one for bash, zsh and fish")
    return scripts[shell]


def _version() -> str:
    from tt_bringup import __version__

    return __version__


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        if trace
        else "unknown place"
    )


def _complain(text: str, code: int) -> int:
    print(f"{PROGRAM}: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
