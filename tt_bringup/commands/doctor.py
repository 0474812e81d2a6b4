"""`tt doctor`: is this machine ready, and if not, what to type."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from tt_bringup.terminal import COLUMNS

_TEXT_COLUMNS = COLUMNS - 18  # beside mark and area


def main(
    calibration: Annotated[Path | None, typer.Option(help="Extrinsics file to check too.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Checks Python, ROS, DDS, clock, CPU, rights, adapters, cameras and calibration.

    Exit code 1 when something is red.
    """
    from tt_bringup import doctor

    findings = doctor.run_checks(calibration)
    if as_json:
        print(json.dumps(doctor.as_json(findings)))
    else:
        _print(findings)
    raise typer.Exit(1 if any(finding.level == doctor.BAD for finding in findings) else 0)


def _print(findings: list) -> None:
    from rich.console import Console
    from rich.text import Text

    from tt_bringup import doctor

    console = Console(highlight=False, soft_wrap=True)
    marks = {doctor.OK: ("ok  ", "green"), doctor.WARN: ("warn", "yellow"), doctor.BAD: ("BAD ", "bold red"),
             doctor.INFO: ("info", "dim")}  # fmt: skip
    for finding in findings:
        mark, style = marks[finding.level]
        first, *more = textwrap.wrap(finding.text, _TEXT_COLUMNS, break_on_hyphens=False) or [""]
        console.print(Text.assemble((mark, style), f"  {finding.area:<12}{first}"))
        for line in more:
            console.print(f"{'':<18}{line}")
        if finding.fix:
            console.print(Text.assemble(("fix:", "bold"), f" {finding.fix}"), style="cyan", soft_wrap=True)
    bad = sum(finding.level == doctor.BAD for finding in findings)
    warn = sum(finding.level == doctor.WARN for finding in findings)
    console.print(f"{bad} red, {warn} yellow" if bad or warn else "all well")
