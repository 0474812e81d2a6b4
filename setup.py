"""Installs the package by pip and by colcon, where ros2 run and launch_ros look for its files."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
NAME = "tt_bringup"
SHARE = f"share/{NAME}"
SHARED_FOLDERS = ("config", "launch", "urdf", "rviz")


def version():
    """The one version, written in the package itself."""
    return re.search(r'__version__ = "(.+)"', (ROOT / NAME / "__init__.py").read_text()).group(1)


def requirements(file, keep):
    """Requirement lines of a file that pass `keep`."""
    lines = (line.split("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
    return [line for line in lines if line and not line.startswith("-") and keep(line)]


def is_ros(line):
    """The ROS wheels are for machines without ROS 2, so they are an extra."""
    return line.startswith("ros-")


def shared_files():
    """Launch files, configuration, robot models and rviz settings, folder by folder."""
    folders = {}
    for top in SHARED_FOLDERS:
        for path in sorted((ROOT / NAME / top).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                relative = path.relative_to(ROOT)
                folder = f"{SHARE}/{relative.parent.relative_to(NAME)}"
                folders.setdefault(folder, []).append(str(relative))
    return list(folders.items())


setup(
    name=NAME,
    version=version(),
    description="A table tennis robot in Python for ROS 2: cameras see a ball, the robot returns it.",
    license="Apache-2.0",
    packages=find_packages(include=["tt_*"]),
    python_requires=">=3.10,<3.14",
    install_requires=requirements("requirements.txt", lambda line: not is_ros(line)),
    extras_require={
        "ros": requirements("requirements.txt", is_ros),
        "dev": requirements("requirements-dev.txt", lambda line: True),
        "basler": ["pypylon"],
    },
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (SHARE, ["package.xml"]),
        (f"lib/{NAME}", sorted(str(path.relative_to(ROOT)) for path in (ROOT / "scripts").iterdir())),
        *shared_files(),
    ],
    entry_points={"console_scripts": ["tt = tt_bringup.cli:main"]},
    zip_safe=False,
)
