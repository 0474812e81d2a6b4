"""What the documents promise exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tt_bringup.cli import COMMANDS, find_verb, load_command
from tt_bringup.launching import arguments
from tt_bringup.topics import TOPICS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands_in(text: str) -> list[list[str]]:
    """Words of every `tt ...` call in code blocks and code spans."""
    found = re.findall(r"(?:^|`)(?:\./)?tt ([a-z][^`#\n|]*)", text, flags=re.MULTILINE)
    return [line.split() for line in found]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_their_options_exist(document):
    groups = {verb.split()[0] for verb in COMMANDS}
    for words in commands_in(document.read_text()):
        verb = find_verb(words)
        assert verb is not None or words[0] in groups, f"tt {' '.join(words)}"
        given = [re.split("[=,)]", word)[0] for word in words if re.match(r"--[a-z]", word)]
        if verb is None or verb == "test" or not given:
            continue
        command = load_command(verb)
        known = {name for part in _with_parts(command) for item in part.params for name in item.opts}
        known |= {"--help"} | {name for item in command.params for name in item.secondary_opts}
        assert set(given) <= known, f"tt {' '.join(words)}"


def _with_parts(command):
    return [command, *getattr(command, "commands", {}).values()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_launch_arguments_exist(document):
    for mode, rest in re.findall(r"tt_bringup (sim|robot|replay)\.launch\.py([^\n`]*)", document.read_text()):
        given = set(re.findall(r"([a-z_]+):=", rest))
        assert given <= {item.name for item in arguments(mode)}


def test_the_topic_page_is_made_from_the_table():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = hooks.topics_page()
    for row in TOPICS:
        assert row.content in page and row.type in page


def test_no_document_or_code_names_a_place_on_somebodys_machine():
    for folder in (
        "tt_perception",
        "tt_estimation",
        "tt_planning",
        "tt_control",
        "tt_sim",
        "tt_bringup",
        "docs",
    ):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md", ".yaml", ".yml", ".xml"):
                assert not re.search(r"/(?:root|home|work)/[a-z]", path.read_text()), path
