"""The short way of a tick over an fdcanusb: the library's lines, its replies, whole lines only, no wait without
a bound.
"""

from __future__ import annotations

import os
import pty
import re
import socket

import pytest

from tt_control.bus import Drive, Setpoints
from tt_control.fdcanusb_line import LineExchange, LineFault
from tt_control.moteus_bus import MoteusBus

REPLY = bytes.fromhex("21000A")


@pytest.fixture
def ends():
    """Our end (non-blocking) and that of an adapter."""
    ours, adapter = socket.socketpair()
    ours.setblocking(False)
    adapter.setblocking(False)
    yield ours, adapter
    ours.close()
    adapter.close()


@pytest.mark.parametrize("drive", list(Drive))
def test_lines_are_the_librarys(gantry, drive):
    master, slave = pty.openpty()
    bus = MoteusBus(gantry.motors, "fdcanusb", os.ttyname(slave))
    try:
        bus.open()
        setpoints = Setpoints.idle(4, drive)
        assert bus._line is not None
        bus.cycle(setpoints, 0.0)
        ours = os.read(master, 4096)
        bus._cycles, bus._line = 0, None
        bus.cycle(setpoints, 0.02)
        assert ours == os.read(master, 4096) and ours.count(b"\n") == 4
    finally:
        bus.close()
        os.close(slave)
        os.close(master)


def test_replies_are_matched_by_board_and_source(ends):
    ours, adapter = ends
    line = LineExchange(ours.fileno(), [1, 2, 3])
    adapter.send(
        b"OK\r\nOK\r\nrcv 27E 21000A E B F\r\n"  # board 2
        b"rcv 17D 210005 E B F\r\n"  # board 1, but the answer to an earlier cycle
        b"rcv 37E 4100 E B F\r\n\r\n"  # board 3, but no answer to a register command
        b"rcv 17E 21000A E"  # torn: its end comes later
    )
    assert line.exchange(0x7E, [b"\x11\x00"] * 3, 0.05, 0.05) == [None, REPLY, None]
    adapter.send(b" B F\r\nrcv 37D 21000A E B F\r\nrcv 17D 21000A E B F\r\nrcv 27D 21000A E B F\r\n")
    assert line.exchange(0x7D, [b"\x11\x00"] * 3, 1.0, 1.0) == [REPLY] * 3


def test_who_is_silent_while_others_reply_is_not_waited_for_long(ends):
    ours, adapter = ends
    line = LineExchange(ours.fileno(), [1, 2])
    adapter.send(b"rcv 27E 21000A E B F\r\n")
    assert line.exchange(0x7E, [b"\x11\x00"] * 2, 3600.0, 0.001) == [None, REPLY]


def test_a_full_buffer_tears_no_line(ends):
    """What the adapter reads in the end are whole commands, and the newest ones."""
    ours, adapter = ends
    line = LineExchange(ours.fileno(), [1, 2])
    for k in range(20_000):
        line.exchange(0x7E, [b"\x01%02d" % (k % 100)] * 2, 0.0, 0.0)
        if line.takes_nothing:
            break
    assert line.takes_nothing
    text = b""
    while line.takes_nothing:
        text += adapter.recv(1_000_000)
        line.exchange(0x7D, [b"\xff"] * 2, 0.0, 0.0)
    text += adapter.recv(1_000_000)
    assert text.endswith(b"can send fd01 FF BF\ncan send fd02 FF BF\n")
    assert all(re.fullmatch(rb"can send f[de]0[12] [0-9A-F]+ BF", row) for row in text.splitlines())


@pytest.mark.parametrize(
    "text", [b"boot\r\n", b"rcv 27E xyz E\r\n", b"rcv\r\n", b"rcv zz 00\r\n", b"x" * 600]
)
def test_what_is_no_answer_is_a_fault(ends, text):
    ours, adapter = ends
    adapter.send(text)
    with pytest.raises(LineFault):
        LineExchange(ours.fileno(), [2]).exchange(0x7E, [b"\x11\x00"], 0.05, 0.05)


def test_refusals_are_counted_and_checksums_noticed(ends):
    ours, adapter = ends
    line = LineExchange(ours.fileno(), [2])
    adapter.send(b"ERR unknown command\r\n")
    assert line.exchange(0x7E, [b"\x11\x00"], 0.01, 0.01) == [None]
    assert line.refused == 1 and not line.wants_checksums
    adapter.send(b"ERR checksum\r\n")
    line.exchange(0x7E, [b"\x11\x00"], 0.01, 0.01)
    assert line.wants_checksums


def test_hanging_up_is_a_fault(ends):
    ours, adapter = ends
    line = LineExchange(ours.fileno(), [2])
    adapter.close()
    with pytest.raises((LineFault, OSError)):
        line.exchange(0x7E, [b"\x11\x00"], 0.05, 0.05)


def test_an_adapter_that_wants_checksums_gets_them(boards, gantry):
    """From then on every tick goes through the library, which adds them."""
    bus = MoteusBus(gantry.motors, "fdcanusb", boards.device)
    bus.open()
    assert bus._line is not None
    assert bus.cycle(Setpoints.idle(4), 1.0).replied.all()
    bus._line.wants_checksums = True
    bus.cycle(Setpoints.idle(4), 1.0)
    assert bus._line is None
    assert bus.cycle(Setpoints.idle(4), 1.0).replied.all()
    assert boards._adapter.checksums
    bus.close()
