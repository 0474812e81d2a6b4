"""The supervisor: nothing survives it, and it says who died."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tt_bringup import cli
from tt_bringup import supervisor as module
from tt_bringup.environment import FIRST_DOMAIN, GRAPH_LABEL, LAST_DOMAIN, free_domain, running_domains
from tt_bringup.graph import Graph, GraphSettings, Process
from tt_bringup.graph_errors import GraphError, NodeDiedError
from tt_bringup.supervisor import Supervisor, run_directory
from tt_perception.errors import TTError

HERE = Path(__file__).resolve().parent


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def process(kind: str, name: str = "", **more) -> Process:
    return Process(name or kind, kind, module="example_process", arguments=(kind,), **more)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Makes supervisors of example processes."""
    monkeypatch.setattr(module, "STOP_GRACE_S", 1.0)
    environment = {**os.environ, "PYTHONPATH": str(HERE), "ROS_DOMAIN_ID": "77"}

    def make(*processes: Process, **more) -> Supervisor:
        graph = Graph(GraphSettings("sim", tmp_path / "run"), processes, {})
        return Supervisor(graph, environment, **more)

    return make


def text(run_dir: Path, name: str) -> str:
    return (run_dir / "run" / "log" / f"{name}.log").read_text()


def wait_for_text(supervisor, run_dir, name, word):
    assert supervisor.wait(lambda: word in text(run_dir, name), cap_s=10.0), f"{name} never said {word}"


def test_children_get_domain_and_run_folder_and_end_with_the_block(run, tmp_path):
    with run(process("polite"), process("plain")) as supervisor:
        supervisor.start()
        wait_for_text(supervisor, tmp_path, "polite", "ready 77")
        pids = list(supervisor.pids.values())
        assert all(alive(pid) for pid in pids)
    assert not any(alive(pid) for pid in pids)


def test_processes_that_do_not_listen_are_killed_with_their_children(run, tmp_path):
    with run(process("parent"), process("stubborn")) as supervisor:
        supervisor.start()
        wait_for_text(supervisor, tmp_path, "parent", "ready")
        wait_for_text(supervisor, tmp_path, "stubborn", "ready")
        child = int(text(tmp_path, "parent").split()[1])
        pids = [*supervisor.pids.values(), child]
    assert not any(alive(pid) for pid in pids)


def test_the_death_of_a_process_is_told_by_name_and_ends_the_others(run, tmp_path):
    with (
        pytest.raises(
            NodeDiedError, match=r"plain was ended by SIGKILL: ready 77; the other nodes were stopped"
        ),
        run(process("polite"), process("plain")) as supervisor,
    ):
        supervisor.start()
        wait_for_text(supervisor, tmp_path, "plain", "ready")
        pids = list(supervisor.pids.values())
        os.kill(supervisor.pids["plain"], signal.SIGKILL)
        supervisor.wait(cap_s=10.0)
    assert not any(alive(pid) for pid in pids)


def test_the_last_words_of_a_failed_start_are_told(run):
    told = "fails ended with exit code 4: motor 3 does not answer"
    with pytest.raises(NodeDiedError, match=told), run(process("fails"), process("plain")) as supervisor:
        supervisor.start()
        supervisor.wait(cap_s=10.0)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (
            "[ERROR] [1.0] [tt.motor_node]: bus lost\n[INFO] [2.0] [tt.motor_node]: already active\n\n",
            "bus lost",
        ),
        ("Traceback\nValueError: nan\n[DEBUG] [2.0] [tt.motor_node]: closed", "ValueError: nan"),
        ("[WARN] [1.0] [tt.motor_node]: joint 2 is hot", "joint 2 is hot"),
        ("[INFO] [1.0] [tt.motor_node]: already active", ""),
        ("", ""),
    ],
)
def test_only_what_can_be_a_reason_is_told_as_one(tmp_path, written, words):
    (tmp_path / "log").write_text(written)
    told = module._last_line(tmp_path / "log")
    assert told.endswith(words) and bool(told) == bool(words)


def test_processes_that_are_not_required_may_end(run):
    with run(process("fails", required=False), process("plain")) as supervisor:
        supervisor.start()
        assert not supervisor.wait(cap_s=1.0)


def test_the_end_of_what_the_run_would_miss_is_told_once_and_the_run_goes_on(run, capsys):
    supervisor = run(process("fails", missed=True, required=False), process("plain"), tell=print)
    with supervisor:
        supervisor.start()
        assert supervisor.wait(lambda: bool(supervisor.losses), cap_s=10.0)
        supervisor.check()
    assert supervisor.losses == ["fails"]
    assert capsys.readouterr().out == "fails ended with exit code 4: motor 3 does not answer\n"


def test_a_bad_end_of_what_the_run_would_miss_is_told_a_good_one_is_not(run, tmp_path, capsys):
    optional = {"missed": True, "required": False}
    with run(process("sloppy", **optional), process("polite", **optional), tell=print) as supervisor:
        supervisor.start()
        wait_for_text(supervisor, tmp_path, "sloppy", "ready")
        wait_for_text(supervisor, tmp_path, "polite", "ready")
    assert supervisor.losses == ["sloppy"]
    assert capsys.readouterr().out == "sloppy ended with exit code 1: the last page was not written\n"


def test_the_hardware_ends_after_the_others(run, tmp_path):
    with run(process("plain", "hardware", stop_last=True), process("stubborn")) as supervisor:
        supervisor.start()
        wait_for_text(supervisor, tmp_path, "hardware", "ready")
        wait_for_text(supervisor, tmp_path, "stubborn", "ready")
        ends = {}
        joined = module._joined

        def note(children, cap_s):
            result = joined(children, cap_s)
            for child in children:
                if child.process.poll() is not None:
                    ends.setdefault(child.name, len(ends))
            return result

        module._joined = note
        try:
            supervisor.stop()
        finally:
            module._joined = joined
    assert ends == {"stubborn": 0, "hardware": 1}


def test_a_program_that_is_not_there_is_one_clear_error(run):
    missing = replace(process("plain"), module="", package="rviz2", executable="rviz2")
    with pytest.raises(GraphError, match="plain cannot be started"), run(missing) as supervisor:
        supervisor.start()


def begin(processes, *kinds):
    """Starts a supervisor in a process of its own; returns it and what it says of its children."""
    child = processes.python(str(HERE / "supervise.py"), *kinds)
    line = child.stdout.readline()
    assert line, child.stderr.read()
    return child, json.loads(line)


def wait_until_gone(pids):
    end = time.monotonic() + 10.0
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end, "a process was left behind"
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all(processes, number):
    child, told = begin(processes, "polite", "plain")
    child.send_signal(number)
    child.communicate(timeout=20)
    assert child.returncode != 0
    wait_until_gone(told["pids"].values())


@pytest.mark.ros
def test_nodes_end_even_when_the_supervisor_is_killed(processes):
    child, told = begin(processes, "node", "node")
    child.kill()
    child.communicate(timeout=20)
    wait_until_gone(told["pids"].values())


def test_two_copies_get_different_domains(processes, monkeypatch):
    monkeypatch.delenv("ROS_DOMAIN_ID")
    _, first = begin(processes, "polite")
    _, second = begin(processes, "polite")
    assert first["domain"] != second["domain"]


def test_the_users_domain_is_kept_and_checked():
    with free_domain("42") as domain:
        assert domain == 42
    for wrong in ("mine", "²", "500", "102", "-1", " 7"):
        with (
            pytest.raises(TTError, match=f"ROS_DOMAIN_ID is '{wrong}', but must be .* from 0 to 101"),
            free_domain(wrong),
        ):
            pass


def test_a_second_graph_in_the_users_domain_is_refused(processes, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("ROS_DOMAIN_ID", "42")
    first, told = begin(processes, "polite")
    words = f"process {first.pid} runs .* in ROS_DOMAIN_ID 42 already"
    with pytest.raises(TTError, match=words), free_domain("42", GRAPH_LABEL):
        pass
    with free_domain("42") as domain:
        assert domain == 42, "who is no graph may join"
    with free_domain("41"), free_domain("41", GRAPH_LABEL) as domain:
        assert domain == 41, "a graph may join those who are none"
    first.kill()
    first.communicate(timeout=20)
    for pid in told["pids"].values():  # they are no nodes, which would end with it
        os.kill(pid, signal.SIGKILL)
    with free_domain("42", GRAPH_LABEL) as domain:
        assert domain == 42, "a killed graph holds nothing"


@pytest.mark.parametrize("verb", ["record", "latency"])
def test_live_commands_check_the_users_domain(monkeypatch, capsys, verb):
    monkeypatch.setitem(os.environ, "ROS_DOMAIN_ID", "500")
    with pytest.raises(SystemExit) as end:
        cli.main([verb])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("tt: ROS_DOMAIN_ID is '500', but must be")


def test_a_domain_is_held_only_as_long_as_its_block():
    with free_domain(None) as first, free_domain(None) as second:
        assert first != second
    for _ in range(200):
        with free_domain(None) as domain:
            assert FIRST_DOMAIN <= domain <= LAST_DOMAIN


def test_live_commands_find_the_one_graph_that_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(os.environ, "ROS_DOMAIN_ID", "")
    with free_domain(None, GRAPH_LABEL) as domain:
        cli._join_running_graph()
        assert os.environ["ROS_DOMAIN_ID"] == str(domain)
        monkeypatch.setitem(os.environ, "ROS_DOMAIN_ID", "")
        with free_domain(None, GRAPH_LABEL), free_domain(None):
            assert len(running_domains()) == 2
            cli._join_running_graph()
        assert os.environ["ROS_DOMAIN_ID"] == "" and "set ROS_DOMAIN_ID to one of" in capsys.readouterr().err
    assert running_domains() == []


def test_the_run_folder_goes_unless_a_node_died():
    with run_directory() as folder:
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(NodeDiedError, match="logs: "), run_directory() as folder:
        raise NodeDiedError("x ended")
    assert folder.is_dir()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
