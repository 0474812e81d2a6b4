"""Docs and examples: generated pages are complete, pictures exist, examples run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import golden
import pytest
import yaml

from tt_bringup.cli import COMMANDS
from tt_bringup.topics import TOPICS
from tt_control.trips import Trip

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_name_everything(hooks: Any) -> None:
    topics, commands = hooks.topics_page(), hooks.commands_page()
    assert all(f"`{row.name}`" in topics for row in TOPICS)
    written = [v for v, c in COMMANDS.items() if importlib.util.find_spec(c.module)]
    assert all(f"## tt {verb}\n" in commands for verb in written)
    table = hooks.on_page_markdown((DOCS / "what_happens_if.md").read_text())
    assert all(trip.name.lower() in table for trip in Trip) and "<!--" not in table
    assert "## motor_node" in hooks.parameters_page()


def _pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def leaves(node: Any) -> list[str]:
        if isinstance(node, str):
            return [node]
        return [leaf for item in (node.values() if isinstance(node, dict) else node) for leaf in leaves(item)]

    named = {leaf for leaf in leaves(config["nav"]) if not leaf.startswith("reference/")}
    assert named == {str(page.relative_to(DOCS)) for page in _pages()}


@pytest.mark.parametrize("page", _pages(), ids=lambda page: page.stem)
def test_links_and_pictures_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if target.startswith(("http://", "https://")) or "reference/" in target:
            continue
        assert (page.parent / target).exists(), f"{page.name} names {target}"


@pytest.mark.parametrize(
    ("example", "words", "text"),
    [
        ("01_read_a_recording", [str(golden.BAG)], "ball 1"),
        ("02_predict_a_ball", [], "bounces after 0.3"),
        ("03_run_the_stages", [str(golden.BAG)], "last plan"),
    ],
)
def test_examples_run(example: str, words: list[str], text: str) -> None:
    call = [sys.executable, str(ROOT / "examples" / f"{example}.py"), *words]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert text in done.stdout
