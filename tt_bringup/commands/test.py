"""`tt test`: runs the tests of the source tree."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer

from tt_bringup.paths import source_root
from tt_perception.errors import TTError

_COUNTS = ("tests", "failures", "errors", "skipped")

app = typer.Typer(add_completion=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def main(
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="Leave out the tests that install packages.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Run the tests; everything else on the command line goes to pytest, e.g. `tt test -k tracker -x`."""
    root = source_root()
    if root is None:
        raise TTError("tt test needs the source tree, where the tests are; clone it and use ./tt test")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [sys.executable, "-m", "pytest", f"--junitxml={report}", "--durations=5"]
        words += ["-m", "not slow"] if fast else []
        # Files on the command line are relative to where the user is; the rest of pytest starts at the root.
        words += [f"--rootdir={root}", "-c", str(root / "pyproject.toml"), *context.args]
        if not any((Path(word.split("::")[0])).exists() for word in context.args):
            words.append(str(root / "test"))
        code = subprocess.run(words, stdout=sys.stderr if as_json else None, check=False).returncode
        if as_json:
            print(json.dumps({"passed": code == 0, **_counts(report)}))
    raise typer.Exit(code)


def _counts(report: Path) -> dict[str, int]:
    if not report.exists():
        return {}
    suite = ElementTree.parse(report).getroot().find("testsuite")
    return {} if suite is None else {name: int(suite.get(name, "0")) for name in _COUNTS}
