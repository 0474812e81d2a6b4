"""Serves balls from a script and counts what came back, beside a running `./tt sim --balls 1000`.

python examples/04_script_the_robot.py 5
"""

import sys

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.executors import SingleThreadedExecutor
from std_srvs.srv import Trigger

balls = int(sys.argv[1]) if len(sys.argv) > 1 else 5
rclpy.init()
node = rclpy.create_node("script", namespace="tt")
results = []
node.create_subscription(DiagnosticStatus, "sim/result", results.append, 10)
serve = node.create_client(Trigger, "sim/serve")
executor = SingleThreadedExecutor()
executor.add_node(node)
try:
    if not serve.wait_for_service(timeout_sec=10.0):
        sys.exit("sim/serve is not offered: start the simulation first")
    for number in range(balls):
        executor.spin_until_future_complete(serve.call_async(Trigger.Request()), timeout_sec=5.0)
        while len(results) <= number:
            executor.spin_once(timeout_sec=1.0)
        print(f"ball {number + 1}: {results[-1].message}")
except KeyboardInterrupt:
    pass
finally:
    node.destroy_node()
    rclpy.try_shutdown()
