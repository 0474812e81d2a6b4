"""`tt topics`: the topic table."""

from __future__ import annotations

import json
import textwrap
from typing import Annotated

import typer

from tt_bringup.terminal import COLUMNS
from tt_bringup.topics import TOPICS, Topic


def main(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every topic and service: name, type, transport, rate, frame, unit and meaning."""
    if as_json:
        print(json.dumps({"topics": [_row(topic) for topic in TOPICS]}, ensure_ascii=False))
        return
    for topic in TOPICS:
        row = _row(topic)
        print(f"{row['name']}  {row['type']}  {row['qos']}  {row['rate']}")
        print(textwrap.fill(str(row["content"]), COLUMNS, initial_indent="    ", subsequent_indent="    "))


def _row(topic: Topic) -> dict[str, str | bool]:
    return {
        "name": topic.name,
        "type": topic.type,
        "qos": topic.qos.name.lower() if topic.qos else "service",
        "rate": topic.rate,
        "frame": topic.frame,
        "unit": topic.unit,
        "publisher": topic.publisher,
        "recorded": topic.recorded,
        "content": topic.content,
    }
