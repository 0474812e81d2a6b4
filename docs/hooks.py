"""Makes the reference pages from the tables in the code, so that they cannot be out of date."""

from __future__ import annotations

import html
import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

MOTOR_TABLE = "<!-- motor stops -->"


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages."""
    from mkdocs.structure.files import File

    for name, make in (("topics", topics_page), ("parameters", parameters_page), ("commands", commands_page)):
        files.append(File.generated(config, f"reference/{name}.md", content=make()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fills in the table of motor stops."""
    return markdown.replace(MOTOR_TABLE, motor_table()) if MOTOR_TABLE in markdown else markdown


def topics_page() -> str:
    """Every topic and service."""
    from tt_bringup.topics import NAMESPACE, TOPICS

    lines = [
        "# Topics and services",
        "",
        f"Names are relative to the namespace of the robot (`{NAMESPACE}` unless told otherwise); a leading slash "
        "makes a name absolute. Only standard messages are used. Made from `tt_bringup/topics.py`.",
        "",
        "| name | type | transport | rate | frame | unit | published by | recorded |",
        "|---|---|---|---|---|---|---|---|",
    ]
    details = ["", "## Content", ""]
    for row in TOPICS:
        how = row.qos.name.lower() if row.qos else "service"
        cells = (
            f"`{row.name}`", f"`{row.type}`", how, row.rate, row.frame, row.unit, row.publisher,
            "yes" if row.recorded else "",
        )  # fmt: skip
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        details += [f"`{row.name}`", f": {row.content}", ""]
    return "\n".join(lines + details)


def parameters_page() -> str:
    """Every parameter of every node."""
    from tt_bringup.registry import parameter_tables

    lines = [
        "# Parameters",
        "",
        "`tt params NODE` prints a YAML file to start from. An unknown name or a value that is not allowed stops the "
        "node with one line. *Live* parameters may change while the node runs. Made from the parameter dataclasses.",
    ]
    for node, table in parameter_tables().items():
        head = [
            "| name | type | default | unit | allowed | live | meaning |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += ["", f"## {node}", "", *head]
        for spec in table:
            default = f"`{spec.default!r}`" if spec.default not in ("", ()) else "empty"
            cells = (
                f"`{spec.name}`", spec.type, default, spec.unit, spec.allowed, "yes" if spec.live else "", spec.doc
            )  # fmt: skip
            lines.append("| " + " | ".join(_cell(str(cell)) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Every command with its arguments."""
    from tt_bringup.cli import COMMANDS, load_command

    lines = [
        "# Commands",
        "",
        "`./tt COMMAND`. Every command has `--help`, and `--json` for one JSON object on standard output; logs, and "
        "progress where that is a terminal, go to standard error. Exit codes: 0 done, 1 the thing asked for did not "
        "come about, 2 bad input, 130 interrupted.",
    ]
    for verb, entry in COMMANDS.items():
        try:
            importlib.import_module(entry.module)
        except ModuleNotFoundError:
            continue
        lines += _command(f"tt {verb}", load_command(verb), entry.help)
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any, about: str) -> list[str]:
    """Heading, sentence and options of a command, then those of its own commands."""
    about = " ".join((command.help or about).split())
    lines = ["", f"## {name}", "", about, "", "| option | meaning |", "|---|---|"]
    for item in command.params:
        names = ", ".join(item.opts)
        if "--help" in names:
            continue
        if item.param_type_name == "argument":
            names = str(item.name).upper()
        text = str(getattr(item, "help", "") or "")
        default = item.default
        if default not in (None, False, "", ()) and not callable(default):
            text += f" Default: {default}."
        lines.append(f"| `{names}` | {_cell(text)} |")
    for inner, inside in getattr(command, "commands", {}).items():
        lines += _command(f"{name} {inner}", inside, "")
    return lines


def motor_table() -> str:
    """What makes the motor controller stop by itself."""
    from tt_control.trips import Trip

    lines = ["| what happens | what the motors do |", "|---|---|"]
    lines += [
        f"| {_cell(trip.cause)} (`{trip.name.lower()}`) | {_cell(trip.reaction.value)} |" for trip in Trip
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")
