"""Start and end of a node process: one way for all, in which the clean-up always runs."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future

from tt_bringup.environment import TRACEBACK_ENV
from tt_bringup.node_kit.hand_over import hand_over
from tt_bringup.node_kit.node import TTLifecycleNode, started_nodes
from tt_bringup.node_kit.stop import StopRequest
from tt_bringup.terminal import say
from tt_perception.errors import TTError

EXIT_OK, EXIT_FAILED, EXIT_BAD_INPUT = 0, 1, 2
SUPERVISED_ENV = "TT_SUPERVISED"
# The events executor of the wheels hangs without a timeout; any finite one is right (measured up to 1e9 s).
_FINITE_S = 1e6
_TAKE_DOWN_S = 10.0
_BACKGROUND_NICE = 5
_PR_SET_PDEATHSIG = 1


def run_node(
    make_node: Callable[[], Any], args: Sequence[str] | None = None, background: bool = False
) -> None:
    """Runs one node until a signal ends the process; never returns normally.

    Args:
        make_node: node class or function without arguments.
        args: command line; the one of the process when left out.
        background: nobody waits for this node; the ones between image and motor get the processor first.
    """
    if background:
        os.nice(_BACKGROUND_NICE)
    run_nodes([make_node], args)


def run_nodes(make_nodes: Sequence[Callable[[], Any]], args: Sequence[str] | None = None) -> None:
    """Runs nodes in one process until SIGINT, SIGTERM or SIGHUP, then cleans up and exits.

    `cleanup()` of every node whose constructor began runs in any case: after a signal, after an exception in
    a callback, and when a later node failed to start. Topics still work in it. Bad input is one line and exit
    code 2: a TTError at any time; names, values and files that ROS or the system refuse while the nodes are made.
    A TTError of a clean-up is one line and exit code 1.

    Args:
        make_nodes: node classes or functions without arguments.
        args: command line; the one of the process when left out.
    """
    code = EXIT_OK
    nodes: list[Any] = []
    stop = StopRequest()
    _die_with_parent()
    hand_over.enabled = len(make_nodes) > 1
    try:
        stop.listen()
        words = list(sys.argv if args is None else args)
        rclpy.init(args=words, signal_handler_options=SignalHandlerOptions.NO)
        for make in make_nodes:
            nodes.append(make())
            nodes[-1].end_process = stop.request
        for node in nodes:
            if isinstance(node, TTLifecycleNode) and getattr(node.params, "autostart", False):
                node.autostart()
        spin(nodes, stop)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except TTError as error:
        code = EXIT_BAD_INPUT
        _complain(str(error))
    except Exception as error:
        if stop.requested:
            pass  # the interruption came out of a half-made node as something else
        elif len(nodes) < len(make_nodes) and (_of_rclpy(error) or isinstance(error, (OSError, ValueError))):
            code = EXIT_BAD_INPUT
            _complain(_one_line(error))
            if os.environ.get(TRACEBACK_ENV):
                traceback.print_exc()
        elif _of_rclpy(error) and not rclpy.ok():
            pass  # a node ended the communication, and something else was due in the same turn
        else:
            code = EXIT_FAILED
            traceback.print_exc()
    finally:
        stop.ignore()
        code = max(code, _clean_up(nodes))
        if code == EXIT_BAD_INPUT and args is None:  # a process of its own, not a command that goes on
            _leave_now(code)
        _take_down()
    sys.exit(code)


def spin(nodes: Sequence[Any], stop: StopRequest) -> None:
    """Runs the callbacks of the nodes until the process is told to end.

    Uses the events executor where there is one (half the CPU time), always with a finite timeout.

    Raises:
        KeyboardInterrupt: a signal came before the first callback.
    """
    executor = make_executor()
    for node in nodes:
        executor.add_node(node)
    # A collection that goes through all that the start has made would hold up the stages for 50 ms and more.
    gc.collect()
    gc.freeze()
    ended = Future(executor=executor)

    def wake() -> None:
        ended.set_result(None)
        executor.wake()

    stop.on_request(wake)
    for node in nodes:
        node.begin()
    while rclpy.ok() and not stop.requested:
        executor.spin_until_future_complete(ended, timeout_sec=_FINITE_S)


def make_executor() -> Any:
    """The events executor where there is one; call it with finite timeouts only."""
    try:
        from rclpy.experimental import EventsExecutor
    except ImportError:
        return SingleThreadedExecutor()
    return EventsExecutor()


def _clean_up(complete: Sequence[Any]) -> int:
    """Cleans every node up while topics still work.

    Args:
        complete: nodes whose constructor ran to its end; the others may miss some of their attributes.
    """
    code = EXIT_OK
    for node in reversed(started_nodes):
        try:
            node.cleanup()
        except TTError as error:
            code = EXIT_FAILED
            _complain(str(error))
        except Exception as error:
            if isinstance(error, AttributeError) and node not in complete:
                continue
            code = EXIT_FAILED
            traceback.print_exc()
    return code


def _leave_now(code: int) -> None:
    """Ends without taking the middleware down: right after its start that hangs once in a hundred times."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _take_down() -> None:
    """Ends the communication."""
    # Seen once in hundreds of exits: the middleware never comes back from being taken down. The hardware is safe
    # by now, so the process may end the hard way.
    faulthandler.dump_traceback_later(_TAKE_DOWN_S, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115
    for node in reversed(started_nodes):
        destroy = getattr(node, "destroy_node", lambda: None)
        # The context may be gone already, or the node half made.
        with contextlib.suppress(Exception):
            destroy()
    started_nodes.clear()
    hand_over.clear()
    rclpy.try_shutdown()
    faulthandler.cancel_dump_traceback_later()


def _die_with_parent() -> None:
    """Asks the kernel for SIGTERM when the supervisor or ros2 launch dies, even by SIGKILL; Linux only."""
    supervisor = os.environ.get(SUPERVISED_ENV)
    if not supervisor or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if not os.path.exists(f"/proc/{supervisor}"):
        sys.exit(EXIT_OK)  # it died before the kernel knew of our wish


def _complain(text: str) -> None:
    say(f"{os.path.basename(sys.argv[0])}: {text}")


def _of_rclpy(error: Exception) -> bool:
    return type(error).__module__.startswith("rclpy")


def _one_line(error: Exception) -> str:
    """The first line of an error, without the places in the sources of rcl; with what it announces."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    named = f" {lines[1].strip()}" if lines[0].endswith(":") and len(lines) > 1 else ""
    return re.sub(r", at /[^,]*:\d+", "", lines[0]) + named
