"""A process for the tests of the supervisor; its first argument tells how it behaves."""

import os
import signal
import subprocess
import sys
import time

kind = sys.argv[1]
if kind == "fails":
    print("motor 3 does not answer", file=sys.stderr)
    sys.exit(4)
if kind in ("stubborn", "parent"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if kind == "parent":
    child = subprocess.Popen([sys.executable, __file__, "stubborn"])
    print("child", child.pid, flush=True)
if kind == "sloppy":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the last page was not written"))
if kind == "polite":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", os.environ.get("ROS_DOMAIN_ID"), flush=True)
while True:
    time.sleep(1.0)
