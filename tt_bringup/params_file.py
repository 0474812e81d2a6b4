"""Checks the shape of a user's parameter file before any node starts, and writes templates of such files."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tt_bringup.graph_errors import GraphError
from tt_bringup.names import nearest
from tt_bringup.node_kit.params import ParamSpec
from tt_bringup.registry import NODES
from tt_bringup.terminal import COLUMNS

_KEY = "ros__parameters"
_COMMENT_COLUMNS = COLUMNS - 6  # beside indentation and mark


def check_params_file(path: Path, nodes: Iterable[str], namespace: str) -> dict[str, set[str]]:
    """Looks for mistakes that ROS would pass over in silence: sections that no node reads.

    Names and types of parameters are checked by each node, which knows its table.

    Args:
        path: the file.
        nodes: nodes of the graph; the other nodes of the package may be named too.
        namespace: namespace of the nodes.

    Returns:
        Which parameters the file sets, for each node.

    Raises:
        GraphError: the file is missing, not YAML, or a section names no node of this package.
    """
    import yaml

    try:
        tree = yaml.safe_load(path.read_text())
    except OSError as error:
        raise GraphError(f"parameter file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise GraphError(f"parameter file {path} is not YAML: {' '.join(str(error).split())}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise GraphError(f"parameter file {path} must map node names to {_KEY}; see tt params")
    known = sorted({*nodes, *(entry.node_name for entry in NODES if not entry.parts)})
    given: dict[str, set[str]] = {name: set() for name in known}
    for name, values in _sections(tree, "", path):
        node = name.split("/")[-1]
        if node not in ("*", "**") and node not in known:
            raise GraphError(f"parameter file {path}: {nearest(node, known, 'node')}")
        readers = [item for item in known if _matches(name, f"/{namespace}/{item}")]
        if not readers:
            raise GraphError(
                f"parameter file {path}: section {name!r} names no node, because the nodes are in the "
                f"namespace /{namespace}; write '/**/{node}'"
            )
        if not isinstance(values, dict):
            raise GraphError(f"parameter file {path}: {name}: {_KEY} must map parameter names to values")
        for reader in readers:
            given[reader].update(str(key) for key in values)
    return given


def template(node: str, table: tuple[ParamSpec, ...]) -> str:
    """A commented YAML section with every parameter of a node at its default."""
    lines = [f"/**/{node}:", f"  {_KEY}:"]
    for spec in table:
        lines += [f"    # {line}" for line in _comment(spec)]
        lines.append(f"    {spec.name}: {_yaml_value(spec.default)}")
    if not table:
        lines[-1] += " {}"
    return "\n".join(lines) + "\n"


def _sections(tree: Mapping[str, Any], above: str, path: Path) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{above}/{str(key).strip('/')}"
        if not isinstance(value, dict):
            raise GraphError(f"parameter file {path}: {name} must hold {_KEY}; see tt params")
        if _KEY in value:
            yield name, value[_KEY]
        else:
            yield from _sections(value, name, path)


def _matches(pattern: str, name: str) -> bool:
    """Whether ROS applies a section to a node: `*` stands for one word, `**` for any number of them."""
    words = [
        ".*" if word == "**" else "[^/]+" if word == "*" else re.escape(word) for word in pattern.split("/")
    ]
    return re.fullmatch("/".join(words), name) is not None


def _comment(spec: ParamSpec) -> list[str]:
    kind = f"{spec.type}, {spec.unit}" if spec.unit else spec.type
    allowed = f", {spec.allowed}" if spec.allowed else ""
    live = ", may change while running" if spec.live else ""
    rows = [spec.doc, f"({kind}{allowed}{live})"]
    return [line for row in rows for line in textwrap.wrap(row, _COMMENT_COLUMNS)]


def _yaml_value(value: Any) -> str:
    import yaml

    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("...\n").strip()
