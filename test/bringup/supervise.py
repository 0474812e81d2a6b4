"""Runs a supervisor in a process of its own, so that tests can send it signals or kill it."""

import json
import sys
from pathlib import Path

from tt_bringup.graph import Graph, GraphSettings, Process
from tt_bringup.supervisor import Supervisor, isolated_environment, run_directory

kinds = sys.argv[1:]
with run_directory() as folder, isolated_environment() as environment:
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    processes = tuple(
        Process(
            f"{kind}{index}",
            kind,
            module="example_node" if kind == "node" else "example_process",
            arguments=(kind,),
        )
        for index, kind in enumerate(kinds)
    )
    with Supervisor(Graph(GraphSettings("sim", folder), processes, {}), environment) as supervisor:
        supervisor.start()
        print(json.dumps({"pids": supervisor.pids, "domain": environment["ROS_DOMAIN_ID"]}), flush=True)
        supervisor.wait()
