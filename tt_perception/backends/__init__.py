"""Cameras behind one contract: UVC, Basler, files, ROS image topics, and the simulator's renderer."""
