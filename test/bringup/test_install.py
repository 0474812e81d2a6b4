"""Installs into clean environments by pip and by colcon, and looks for everything that ROS would look for."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
IGNORED = shutil.ignore_patterns(
    ".git", ".venv", "build", "install", "log", "__pycache__", ".*_cache", "*.egg-info"
)

# Runs inside the new environment: what does each launch file start, and is it where launch_ros looks?
RESOLVE = """
import json, sys
sys.path.insert(0, {here!r})
import pytest, fake_launch
import tt_bringup
from tt_bringup.graph import find_executable
from tt_bringup.paths import share_dir, source_root
fake_launch.install(pytest.MonkeyPatch())
found = {{"package": tt_bringup.__file__, "source": str(source_root()), "share": str(share_dir())}}
for mode in ("sim", "robot", "replay"):
    description = fake_launch.load(share_dir() / "launch" / f"{{mode}}.launch.py")
    for composition in ("true", "false"):
        for node in fake_launch.nodes(description, composition=composition, record="true", bag="bag"):
            found[node.executable] = str(find_executable(node.package, node.executable))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the source tree, so that building leaves nothing in the real one."""
    folder = tmp_path_factory.mktemp("source") / "tt"
    shutil.copytree(ROOT, folder, ignore=IGNORED)
    return folder


def clean_environment(folder: Path) -> Path:
    """A virtual environment that sees the dependencies of this one, but not the source tree."""
    venv.create(folder, with_pip=False)
    library = next(folder.glob("lib/python*/site-packages"))
    (library / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "bin" / "python"


def run(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=cwd, env={**os.environ, **environment}
    )
    assert result.returncode == 0, f"{' '.join(words)}\n{result.stdout}\n{result.stderr}"
    return result


def check_prefix(python: Path, prefix: Path, cwd: Path, **environment: str) -> None:
    """Everything is where ros2 run, ros2 launch and launch_ros look, and the executables work."""
    environment["AMENT_PREFIX_PATH"] = str(prefix)
    found = json.loads(run(str(python), "-c", RESOLVE.format(here=str(HERE)), cwd=cwd, **environment).stdout)
    assert found.pop("package").startswith(str(prefix)), "the installed package is the one that runs"
    assert found.pop("source") == "None"
    assert found.pop("share") == str(prefix / "share" / "tt_bringup")
    assert set(found) == {path.name for path in (ROOT / "scripts").iterdir()}
    assert set(found.values()) == {str(prefix / "lib" / "tt_bringup" / name) for name in found}
    for relative in (
        "share/ament_index/resource_index/packages/tt_bringup",
        "share/tt_bringup/package.xml",
        "share/tt_bringup/config/fastdds.xml",
        "share/tt_bringup/urdf/gantry4.urdf",
        "share/tt_bringup/config/robots/gantry4.yaml",
    ):
        assert (prefix / relative).is_file(), relative
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    refused = subprocess.run(
        [str(prefix / "lib" / "tt_bringup" / "latency_monitor"), "--ros-args", "-p", "window:=5.0"],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **environment, "PATH": path},
    )
    assert refused.returncode == 2
    assert "did you mean 'window_s'" in refused.stderr


@pytest.mark.slow
def test_pip_install_puts_everything_where_ros_looks(source, tmp_path):
    python = clean_environment(tmp_path / "env")
    flags = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q")
    run(str(python), "-m", "pip", "install", *flags, str(source), cwd=tmp_path)
    check_prefix(python, tmp_path / "env", tmp_path)
    assert run(str(tmp_path / "env" / "bin" / "tt"), "--version", cwd=tmp_path).stdout.startswith("tt ")
    # A clean environment stays clean: uninstalling removes every file again.
    run(str(python), "-m", "pip", "uninstall", "-y", "-q", "tt_bringup", cwd=tmp_path)
    left = [path for path in (tmp_path / "env").rglob("*tt_bringup*") if path.is_file() or path.is_symlink()]
    assert not left


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--merge-install",), ("--symlink-install",)])
def test_colcon_build_puts_everything_where_ros_looks(source, tmp_path, flags):
    python = clean_environment(tmp_path / "env")
    colcon = Path(sys.prefix) / "bin" / "colcon"
    assert colcon.exists(), "colcon is part of requirements-dev.txt"
    workspace = tmp_path / "ws"
    workspace.mkdir()
    run(
        str(python), str(colcon), "build", "--paths", str(source), *flags, cwd=workspace,
        PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    )  # fmt: skip
    merged = "--merge-install" in flags
    prefix = workspace / "install" if merged else workspace / "install" / "tt_bringup"
    if "--symlink-install" in flags:
        # The package itself stays in the source tree then; what ROS looks for is in the prefix.
        assert os.access(prefix / "lib" / "tt_bringup" / "sim_node", os.X_OK)
        assert (prefix / "share" / "tt_bringup" / "launch" / "sim.launch.py").is_file()
        return
    library = next(prefix.glob("lib/python*/site-packages"))
    check_prefix(python, prefix, workspace, PYTHONPATH=str(library))
