"""The diagnostic stream of a board: text commands tunnelled through frames, as the vendor's tools use them.

The client sends pieces of text lines and polls for pieces of the answer, plainly or with packet numbers that
make lost frames repeatable. Understood are `conf` (get, set, enumerate, write, load, default), `tel` (list,
schema, get, fmt, text, rate, stop) and the `d` commands that set modes, which is what `moteus_tool` needs to
query, stop, configure and dump a board. Calibration and flashing are not simulated and answered with an
error.
"""

import math
import struct
from collections.abc import Callable

from tt_sim.boards import frames, telemetry
from tt_sim.boards import registers as reg
from tt_sim.boards.board import Board
from tt_sim.boards.config import DEFAULTS, format_value, parse_value
from tt_sim.boards.control_law import Command

DEBUG_CHANNEL = 1
OUTPUT_LIMIT = 16384
OK = "OK\r\n"
# Options of `d pos` and its relatives: letter -> command field.
OPTIONS = {
    "p": "kp_scale",
    "d": "kd_scale",
    "i": "ilimit_scale",
    "s": "stop_position",
    "f": "feedforward",
    "t": "timeout",
    "v": "velocity_limit",
    "a": "accel_limit",
    "o": "fixed_voltage",
    "c": "fixed_current",
    "b": "ignore_bounds",
}


class Diagnostic:
    """Text side of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._input = b""
        self._output = bytearray()
        self._binary: dict[str, bool] = {}
        self._period_s: dict[str, float] = {}
        self._next_s: dict[str, float] = {}
        self._packet = 0
        self._unacknowledged: bytes | None = None

    def handle(self, streams: list[tuple[int, int, int, int, int]], data: bytes) -> bytes:
        """Carry out the stream subframes of one frame and return the answer subframes."""
        answer = b""
        for kind, channel, argument, first, last in streams:
            if channel > 0x7F:
                continue  # no such channel on any board
            ours = channel == DEBUG_CHANNEL
            if kind == frames.STREAM_CLIENT_DATA:
                if ours:
                    self._receive(data[first:last])
            elif kind == frames.STREAM_CLIENT_POLL:
                self._unacknowledged = None
                chunk = self._take(min(argument, frames.MAX_PAYLOAD - 3)) if ours else b""
                answer += bytes([frames.STREAM_SERVER_DATA, channel, len(chunk)]) + chunk
            else:
                acknowledged = data[first]
                if acknowledged == 0 and self._packet != 1:  # a new client starts at zero
                    self._packet, self._unacknowledged = 0, None
                if self._unacknowledged is None or acknowledged == self._packet:
                    self._packet = self._packet % 255 + 1
                    self._unacknowledged = self._take(min(argument, frames.MAX_PAYLOAD - 4)) if ours else b""
                chunk = self._unacknowledged
                answer += bytes([frames.STREAM_SERVER_DATA_FLOW, channel, self._packet, len(chunk)]) + chunk
        return answer

    def _take(self, count: int) -> bytes:
        self._emit_periodic()
        chunk = bytes(self._output[:count])
        del self._output[:count]
        return chunk

    def _say(self, content: str | bytes) -> None:
        if (
            len(self._output) < OUTPUT_LIMIT
        ):  # a client that never polls loses text, like a full buffer on the board
            self._output += content.encode("ascii", "replace") if isinstance(content, str) else content

    def _receive(self, chunk: bytes) -> None:
        self._input = (self._input + chunk)[-1024:].replace(b"\r", b"\n")
        *lines, self._input = self._input.split(b"\n")
        for line in lines:
            if line.strip():
                self._execute(line.decode("latin1").split())

    def _execute(self, words: list[str]) -> None:
        group: dict[str, Callable[[list[str]], None]] = {
            "conf": self._conf,
            "tel": self._tel,
            "d": self._debug,
        }
        handler = group.get(words[0])
        if handler is None:
            self._say("ERR unknown command\r\n")
        elif len(words) < 2:
            self._say("ERR unknown subcommand\r\n")
        else:
            handler(words[1:])

    # ------------------------------------------------------------------ conf

    def _conf(self, words: list[str]) -> None:
        board = self._board
        verb, arguments = words[0], words[1:]
        if verb == "enumerate":
            self._enumerate(arguments[0] if arguments else "")
        elif verb == "get" and arguments:
            if arguments[0] in board.config:
                self._say(format_value(board.config[arguments[0]]) + "\r\n")
            else:
                self._say(_unknown(arguments[0], "error reading"))
        elif verb == "set" and len(arguments) == 2:
            name, text = arguments
            if name not in DEFAULTS:
                self._say(_unknown(name, "error setting"))
                return
            try:
                board.set_config(name, parse_value(name, text))
            except ValueError:
                self._say("ERR error setting\r\n")
            else:
                self._say(OK)
        elif verb == "write":
            board.flash = dict(board.config)
            self._say(OK)
        elif verb in ("load", "default"):
            board.config = dict(board.flash) if verb == "load" else {**DEFAULTS, "id.id": board.id}
            board.apply_config()
            self._say(OK)
        else:
            self._say("ERR unknown subcommand\r\n")

    def _enumerate(self, group: str) -> None:
        if group == "uuid":
            self._say("".join(f"uuid.uuid.{i} {byte}\r\n" for i, byte in enumerate(self._board.uuid)) + OK)
            return
        chosen = [name for name in self._board.config if not group or name.split(".")[0] == group]
        if not chosen:
            self._say("ERR unknown group\r\n")
            return
        self._say("".join(f"{name} {format_value(self._board.config[name])}\r\n" for name in chosen) + OK)

    # ------------------------------------------------------------------ tel

    def _tel(self, words: list[str]) -> None:
        verb, arguments = words[0], words[1:]
        if verb == "list":
            self._say("".join(f"{name}\r\n" for name in telemetry.CHANNELS) + OK)
            return
        if verb in ("stop", "text"):
            self._period_s.clear()
            if verb == "text":
                self._binary.clear()
            else:
                self._output.clear()
            self._say(OK)
            return
        if not arguments or arguments[0] not in telemetry.CHANNELS:
            self._say("ERR unknown name\r\n")
            return
        name = arguments[0]
        if verb == "schema":
            self._say(f"schema {name}\r\n")
            blob = telemetry.schema(telemetry.CHANNELS[name])
            self._say(struct.pack("<I", len(blob)) + blob)
        elif verb == "get":
            self._emit(name)
        elif verb in ("fmt", "rate") and len(arguments) == 2 and arguments[1].isdigit():
            number = int(arguments[1])
            if verb == "fmt":
                self._binary[name] = number == 0
            elif number > 0:
                self._period_s[name] = max(0.01, number / 1000.0)
                self._next_s[name] = 0.0
            else:
                self._period_s.pop(name, None)
            self._say(OK)
        else:
            self._say("ERR unknown subcommand\r\n")

    def _emit(self, name: str) -> None:
        members = telemetry.CHANNELS[name]
        present = telemetry.values(name, self._board)
        if self._binary.get(name, True):
            blob = telemetry.pack(members, present)
            self._say(f"emit {name}\r\n")
            self._say(struct.pack("<I", len(blob)) + blob)
        else:
            self._say("".join(f"{name}.{m.name} {v}\r\n" for m, v in zip(members, present, strict=True)) + OK)

    def _emit_periodic(self) -> None:
        now_s = self._board.time_s
        for name, period_s in self._period_s.items():
            if now_s >= self._next_s[name] and len(self._output) < OUTPUT_LIMIT // 4:
                self._next_s[name] = now_s + period_s
                self._emit(name)

    # ------------------------------------------------------------------ d

    def _debug(self, words: list[str]) -> None:
        board = self._board
        verb, arguments = words[0], words[1:]
        try:
            if verb == "stop":
                board.stop()
            elif verb in ("pos", "tmt", "zero", "within"):
                board.command(self._parse_command(verb, arguments))
            elif verb == "brake":
                board.command(Command(int(reg.Mode.BRAKE)))
            elif verb in ("nearest", "rezero", "index"):
                board.set_output_nearest(float(arguments[0]) if arguments else 0.0)
            elif verb == "exact":
                board.set_output_exact(float(arguments[0]))
            elif verb == "req-reindex":
                board.require_reindex(0.0)
            elif verb == "recapture":
                board.recapture(0.0)
            elif verb == "cfg-set-output":
                name = "motor_position.output.offset"
                change = float(arguments[0]) - board.position
                board.set_config(name, float(board.config[name]) + change)
                board.set_output_exact(float(arguments[0]))
            elif verb == "reset":
                board.reset()
                return  # a board that restarts does not answer
            else:
                self._say("ERR unknown subcommand\r\n")
                return
        except (ValueError, IndexError, KeyError):
            self._say("ERR error parsing\r\n")
            return
        self._say(OK)

    @staticmethod
    def _parse_command(verb: str, arguments: list[str]) -> Command:
        modes = {"pos": 10, "tmt": 11, "zero": 12, "within": 13}
        command = Command(modes[verb])
        first, second, command.max_torque = (float(a) for a in arguments[:3])
        if verb == "within":
            command.lower_bound, command.upper_bound = first, second
        else:
            command.position, command.velocity = first, second
        command.timeout = math.nan if verb != "pos" else 0.0
        for option in arguments[3:]:
            setattr(command, OPTIONS[option[0]], float(option[1:]))
        return command


def _unknown(name: str, error: str) -> str:
    groups = {known.split(".")[0] for known in DEFAULTS}
    return f"ERR {error}\r\n" if name.split(".", maxsplit=1)[0] in groups else "ERR unknown group\r\n"
