"""The vendor's moteus_tool and our `tt sim bus`, as processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import moteus
import pytest

from tt_perception.errors import TTError
from tt_sim.boards import BoardServer, BoardSpec, Command, Fault, Mode
from tt_sim.boards.bench import bench_cycle
from tt_sim.boards.config import DEFAULTS

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def server() -> Iterator[BoardServer]:
    with BoardServer([BoardSpec(1), BoardSpec(2)], standalone=True) as running:
        yield running


def tool(server: BoardServer, *arguments: str) -> str:
    command = [sys.executable, "-m", "moteus.moteus_tool", "--fdcanusb", server.device, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_moteus_tool_identifies_the_boards(server: BoardServer) -> None:
    out = tool(server, "--info")
    assert out.count("Target:") == 2
    for board in server.boards.boards:
        assert board.uuid.hex() in out.replace("-", "")


def test_moteus_tool_dumps_writes_and_stores_the_configuration(server: BoardServer, tmp_path: Path) -> None:
    dump = dict(line.split(" ") for line in tool(server, "-t", "1", "--dump-config").split("\n") if line)
    assert set(dump) == set(DEFAULTS)
    assert (dump["servopos.position_min"], dump["servopos.position_max"]) == ("-0.01", "0.01")
    assert dump["id.id"] == "1"
    file = tmp_path / "board.cfg"
    file.write_text("servopos.position_max 2.5\nservo.pid_position.kp 33  # stiffer\nservo.nonsense 1\n")
    out = tool(server, "-t", "1", "--restore-config", str(file))
    assert "servo.nonsense" in out
    board = server.boards.board(1)
    assert board.config["servopos.position_max"] == 2.5
    assert board.flash["servo.pid_position.kp"] == 33.0
    assert server.boards.board(2).config["servopos.position_max"] == 0.01


def test_moteus_tool_stops_a_faulted_board_and_reads_its_state(server: BoardServer) -> None:
    board = server.boards.board(2)
    with server.boards.lock:
        board.command(Command(int(Mode.POSITION)))
        board.driver_fault = True
        board.control(0.0, 0.0, 24.0, 0.001)
        board.driver_fault = False
    stats = json.loads(tool(server, "-t", "2", "--read", "servo_stats"))
    assert (stats["mode"], stats["fault"]) == (Mode.FAULT, Fault.MOTOR_DRIVER)
    tool(server, "-t", "2", "--stop")
    assert board.mode == Mode.STOPPED


def bus(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tt_bringup.cli", "sim", "bus", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_tt_sim_bus_serves_until_it_is_stopped_and_cleans_up(tmp_path: Path, how: signal.Signals) -> None:
    import asyncio

    link = tmp_path / "motors"
    process = bus("--ids", "3,7", "--link", str(link), "--json", "--conf", "7:servopos.position_max=4")
    try:
        assert process.stdout is not None
        announced = json.loads(process.stdout.readline())
        assert announced["device"] == str(link)
        assert announced["ids"] == [3, 7]

        async def ask() -> None:
            transport = moteus.Fdcanusb(str(link))
            c = moteus.Controller(id=7, transport=transport)
            assert (await asyncio.wait_for(c.query(), 5.0)).id == 7
            value = await moteus.Stream(c).command(b"conf get servopos.position_max", allow_any_response=True)
            assert float(value) == 4.0
            asyncio.get_running_loop().remove_reader(transport._transport.devices()[0]._serial.fd)
            transport.close()

        asyncio.run(ask())
        process.send_signal(how)
        rest, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert rest == "", "one JSON object and nothing else"
    assert "Traceback" not in errors
    assert not link.is_symlink()


def test_tt_sim_bus_offers_the_axes_of_a_robot() -> None:
    process = bus("--robot", "gantry4", "--json", "--duration", "0.2", "--fail", "t=0.05 overvoltage")
    out, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    assert json.loads(out)["ids"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        (["--ids", "1,x"], "1,x"),
        (["--ids", "200"], "200"),
        (["--ids", "1", "--robot", "gantry4"], "not both"),
        (["--robot", "gantry9"], "gantry4"),
        (["--conf", "servopos.position_max=wide"], "wide"),
        (["--conf", "servopos.position_mux=1"], "servopos.position_max"),
        (["--fail", "t=1 explode"], "explode"),
        (["--rate", "1"], "rate"),
        (["--link", os.devnull + "/motors"], "link"),
    ],
)
def test_tt_sim_bus_refuses_nonsense_in_one_line(
    arguments: list[str], needle: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from tt_bringup.cli import main

    with pytest.raises(SystemExit) as end:
        main(["sim", "bus", *arguments])
    assert end.value.code == 2
    out, errors = capfd.readouterr()
    assert out == ""
    assert needle in errors
    assert len(errors.strip().splitlines()) == 1


def test_the_benchmark_times_library_and_boards(capfd: pytest.CaptureFixture[str]) -> None:
    from tt_bringup.cli import main

    with pytest.raises(SystemExit) as end:
        main(["bench", "bus", "--boards", "2", "--cycles", "20", "--json"])
    out, errors = capfd.readouterr()
    assert end.value.code == 0, errors
    result = json.loads(out)
    for name in ("library_us", "driver_us", "cycle_us"):
        assert 0.0 < result[name]["min"] <= result[name]["median"] <= result[name]["max"]
    assert result["control_us"] > 0.0
    with pytest.raises(TTError):
        bench_cycle(boards=0)


def test_bench_stops_times_a_dying_board_and_a_dying_process(capsys: pytest.CaptureFixture) -> None:
    """How fast it is depends on what else this machine does; that it stops does not."""
    from tt_bringup.cli import _guarded

    assert _guarded(["bench", "stops", "--runs", "1", "--json"]) in (0, 1)
    stops = json.loads(capsys.readouterr().out)["stops"]
    assert [stop["limit_s"] for stop in stops] == [pytest.approx(0.022), pytest.approx(0.030)]
    for stop in stops:
        assert all(seconds is None or 0.001 < seconds < 0.4 for seconds in stop["times_s"]), stop
