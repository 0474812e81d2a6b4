"""Calibration: intrinsics from boards, poses from the table, a board or a moving ball, and time offsets."""
