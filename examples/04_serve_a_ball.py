"""Serves one ball and says what became of it, beside a running `./tt sim --balls 0`.

.venv/bin/python examples/04_serve_a_ball.py
"""

import sys

from tt_bringup.api import ApiError, TableTennisRobot

try:
    with TableTennisRobot() as robot:
        robot.wait_until_ready()
        result = robot.serve()
        print(f"{result['outcome']}; landed at {result.get('landing_m')} m")
except ApiError as error:
    sys.exit(str(error))
