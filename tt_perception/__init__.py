"""Cameras, ball detection, calibration and triangulation: from pixels to ball positions."""
