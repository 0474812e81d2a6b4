"""Everything a ROS node of this stack shares: parameters, topics, latency stamps, health, start and end."""

from tt_bringup.node_kit.node import TTLifecycleNode, TTNode
from tt_bringup.node_kit.params import ParameterError, ParamSpec, build_params, param, param_table
from tt_bringup.node_kit.run import run_node, run_nodes

__all__ = [
    "ParamSpec",
    "ParameterError",
    "TTLifecycleNode",
    "TTNode",
    "build_params",
    "param",
    "param_table",
    "run_node",
    "run_nodes",
]
