"""What people start and hold: graph, launch files, node kit, command line, recording, viewer, reports."""

__version__ = "0.1.0"
