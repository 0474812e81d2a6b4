"""`tt params`: the parameters of the nodes, as a YAML file to start from or as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from tt_bringup.names import nearest
from tt_bringup.params_file import template
from tt_bringup.registry import parameter_tables
from tt_perception.errors import TTError


def main(
    nodes: Annotated[list[str] | None, typer.Argument(help="Node names; all nodes when left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Print the parameters of the nodes: a commented YAML file with every default.

    Keep the lines you change and give the file to `tt sim --params-file` or to `params_file:=`.
    """
    tables = parameter_tables()
    for name in nodes or ():
        if name not in tables:
            raise TTError(nearest(name, tables, "node"))
    chosen = {name: tables[name] for name in nodes or tables}
    if as_json:
        print(
            json.dumps({name: [dataclasses.asdict(spec) for spec in table] for name, table in chosen.items()})
        )
    else:
        print("\n".join(template(name, table) for name, table in chosen.items()), end="")
