"""Plays a rally of a few balls, then sends the robot home, beside a running `./tt sim --balls 0`.

.venv/bin/python examples/05_play_a_rally.py 5
"""

import sys

from tt_bringup.api import ApiError, TableTennisRobot

balls = int(sys.argv[1]) if len(sys.argv) > 1 else 5
try:
    with TableTennisRobot() as robot:
        rally = robot.start_rally(balls)
        for number, result in enumerate(rally.results, 1):
            print(f"ball {number}: {result['outcome']}")
        print(f"returned {rally.returned} of {balls}")
        robot.go_home()
except ApiError as error:
    sys.exit(str(error))
