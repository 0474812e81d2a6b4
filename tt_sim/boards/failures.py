"""Scripted failures of boards, supply and adapter: what they are, how a line of text names them.

Script lines read `t=2.0 dead 3`, `t=1 late 1,2 delay=0.05 for=0.5`, `t=3 overvoltage volts=60`, `unplug
for=0.3`. `t` counts seconds since the physics started, a missing `t` means at once; `for` ends the failure
again.
"""

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tt_perception.errors import TTError
from tt_sim.boards.board import Board
from tt_sim.boards.supply import Supply

# kind -> (needs board ids, what it does, options beside t and for)
KINDS: dict[str, tuple[bool, str, tuple[str, ...]]] = {
    "dead": (True, "the board neither listens, answers nor drives its motor", ()),
    "silent": (True, "the board works but its replies are lost", ()),
    "lossy": (True, "each reply is lost with probability p", ("p",)),
    "late": (True, "replies come delay seconds late", ("delay",)),
    "encoder": (True, "the encoder stops reading; position control faults with code 35", ()),
    "driver": (True, "the motor driver reports a fault, code 33", ()),
    "overtemperature": (
        True,
        "the board shows celsius degrees; limits from 50, faults above 75",
        ("celsius",),
    ),
    "reset": (True, "the board restarts: stopped, stored configuration", ()),
    "overvoltage": (False, "the bus rises to volts; boards that drive fault with code 34", ("volts",)),
    "undervoltage": (False, "the bus falls to volts; boards that drive fault with code 40", ("volts",)),
    "stray": (
        False,
        "the adapter sends a line that is no reply (with a valid checksum unless checksum=0)",
        ("checksum",),
    ),
    "noise": (False, "the adapter sends count bytes that are no text", ("count",)),
    "mute": (False, "the adapter is there but answers nothing at all", ()),
    "unplug": (False, "the adapter vanishes: the device hangs up and its path is gone", ()),
}
OPTION_DEFAULTS = {
    "p": 0.5,
    "delay": 0.02,
    "celsius": 90.0,
    "volts": math.nan,
    "checksum": 1.0,
    "count": 40.0,
}
VOLTS_DEFAULT = {"overvoltage": 60.0, "undervoltage": 3.0}


@dataclass(frozen=True)
class Failure:
    """One failure: kind, boards (empty: all, or the adapter), time, duration (0: for good) and options."""

    kind: str
    ids: tuple[int, ...] = ()
    time_s: float = 0.0
    duration_s: float = 0.0
    options: dict[str, float] = field(default_factory=dict)
    end: bool = False

    def __post_init__(self) -> None:
        """Refuse what no failure can be; raises TTError naming the value and what is allowed."""
        if self.kind not in KINDS:
            raise TTError(f"unknown failure {self.kind!r}; known: {', '.join(KINDS)}.")
        needs_ids, _, options = KINDS[self.kind]
        if needs_ids and not self.ids:
            raise TTError(
                f"failure {self.kind!r} needs board ids, such as '{self.kind} 3' or '{self.kind} 1,2'."
            )
        if not needs_ids and self.ids:
            raise TTError(
                f"failure {self.kind!r} concerns the whole bus: leave out the board ids {self.ids}."
            )
        for name, value in self.options.items():
            if name not in options:
                allowed = ", ".join(("t", "for", *options))
                raise TTError(f"failure {self.kind!r} has no option {name!r}; allowed: {allowed}.")
            if not math.isfinite(value):
                raise TTError(
                    f"option {name} of failure {self.kind!r} is {value}; it must be a finite number."
                )
        for name, value in (("t", self.time_s), ("for", self.duration_s)):
            if not (math.isfinite(value) and value >= 0.0):
                raise TTError(
                    f"{name}={value} of failure {self.kind!r} must be a number of seconds, 0 or more."
                )

    def option(self, name: str) -> float:
        """Value of an option, its default when the script left it out."""
        default = VOLTS_DEFAULT[self.kind] if name == "volts" else OPTION_DEFAULTS[name]
        return self.options.get(name, default)

    @classmethod
    def parse(cls, text: str) -> "Failure":
        """Read one script line; see the module text for the form.

        Raises:
            TTError: the line is not a failure.
        """
        kind = ""
        ids: tuple[int, ...] = ()
        numbers: dict[str, float] = {}
        for word in text.split():
            name, is_option, value = word.partition("=")
            try:
                if is_option:
                    numbers[name] = float(value)
                elif not kind:
                    kind = word
                else:
                    ids += tuple(int(part) for part in word.split(",") if part)
            except ValueError:
                raise TTError(
                    f"{word!r} in failure {text!r} is no number; write it like 't=2.0 dead 3'."
                ) from None
        if not kind:
            raise TTError(
                f"failure {text!r} names no kind; write it like 't=2.0 dead 3'. Known: {', '.join(KINDS)}."
            )
        time_s, duration_s = numbers.pop("t", 0.0), numbers.pop("for", 0.0)
        return cls(kind, ids, time_s, duration_s, numbers)


class BusState:
    """What is wrong with the bus at the moment; written by failures, read by the adapter."""

    def __init__(self) -> None:
        self.dead: set[int | str] = set()
        self.silent: set[int | str] = set()
        self.late: dict[int | str, float] = {}
        self.lossy: dict[int | str, float] = {}
        self.injected: deque[tuple[bytes, bool]] = deque()
        self.muted = False
        self.unplugged = False
        self._random = random.Random(1)

    def lose(self, key: int | str) -> bool:
        """Whether this reply of a lossy board is lost."""
        return self._random.random() < self.lossy[key]


def apply_failure(failure: Failure, boards: Sequence[Board], supply: Supply, bus: BusState) -> Failure | None:
    """Start (for an end mark: end) a failure; return the mark that ends it, None for a momentary one."""
    chosen = [board for board in boards if board.id in failure.ids]
    on = not failure.end
    kind = failure.kind
    for board in chosen:
        if kind in ("dead", "silent"):
            members = bus.dead if kind == "dead" else bus.silent
            members.add(board.key) if on else members.discard(board.key)
            if kind == "dead" and not on:
                board.reset()  # power comes back
        elif kind in ("late", "lossy"):
            table = bus.late if kind == "late" else bus.lossy
            if on:
                table[board.key] = failure.option("delay" if kind == "late" else "p")
            else:
                table.pop(board.key, None)
        elif kind == "encoder":
            board.encoder_ok = not on
        elif kind == "driver":
            board.driver_fault = on
        elif kind == "overtemperature":
            board.forced_temperature = failure.option("celsius") if on else None
        elif kind == "reset":
            board.reset()
    if kind in ("overvoltage", "undervoltage"):
        supply.forced_v = failure.option("volts") if on else None
        if not on:
            supply.voltage_v = supply.spec.voltage_v
    elif kind == "stray" and on:
        bus.injected.append((b"fdcanusb warning: rx overflow", failure.option("checksum") != 0.0))
    elif kind == "noise" and on:
        bus.injected.append((bytes(range(128, 128 + min(int(failure.option("count")), 120))), False))
    elif kind == "mute":
        bus.muted = on
    elif kind == "unplug":
        bus.unplugged = on
    if failure.end or kind in ("reset", "stray", "noise"):
        return None
    return replace(failure, end=True)
