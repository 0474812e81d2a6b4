"""Table, net and ball dimensions, in metres (ITTF Statutes 2026, 2.1.1, 2.2.3, 2.3.1, 2.3.2).

Frame `table`: origin at the centre of the table top, x across the width, y along the length, z up.
The robot's half is y < 0.
"""

TABLE_LENGTH_M = 2.74
TABLE_WIDTH_M = 1.525
TABLE_HEIGHT_M = 0.76  # table top above the floor
NET_HEIGHT_M = 0.1525
NET_OVERHANG_M = 0.1525  # beyond each side line
BALL_RADIUS_M = 0.02
BALL_MASS_KG = 0.0027
