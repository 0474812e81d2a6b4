"""Checks of the machine: what is fine, what is not, and the command that fixes it.

Every check is a function that returns findings and never raises; a check that cannot be made says so.
"""

from __future__ import annotations

import contextlib
import grp
import importlib.util
import os
import platform
import pwd
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

OK, WARN, BAD, INFO = "ok", "warn", "bad", "info"
PYTHONS = ((3, 10), (3, 13))
PACKAGES = {
    "numpy": "numpy",
    "scipy": "scipy",
    "numba": "numba",
    "cv2": "opencv-python-headless",
    "moteus": "moteus",
    "mujoco": "mujoco",
    "rosbags": "rosbags",
    "typer": "typer",
    "rich": "rich",
    "yaml": "pyyaml",
    "matplotlib": "matplotlib",
    "viser": "viser",
}
OPTIONAL = {"matplotlib": "pictures of reports", "viser": "the browser viewer", "mujoco": "the simulation"}
MESSAGE_PACKAGES = (
    "sensor_msgs",
    "nav_msgs",
    "trajectory_msgs",
    "visualization_msgs",
    "diagnostic_msgs",
    "std_srvs",
)
MIN_FREE_GB = 2.0
MAX_CALIBRATION_DAYS = 180
RT_PRIORITY = 50
SLEEP_TRIALS = 200
SLEEP_S = 0.001
MAX_SLEEP_ERROR_MS = 0.5


@dataclass(frozen=True)
class Finding:
    """One line of the list.

    Attributes:
        area: python, packages, ros, dds, clock, cpu, realtime, cameras, serial, calibration or disk.
        level: ok, warn (works, but worse), bad (does not work), info.
        text: what was found.
        fix: command or step that repairs it; empty when there is nothing to do.
    """

    area: str
    level: str
    text: str
    fix: str = ""


def run_checks(calibration: Path | None = None, root: Path = Path("/")) -> list[Finding]:
    """All checks in the order they matter.

    Args:
        calibration: extrinsics file to look at; the simulated cameras need none.
        root: where `/dev`, `/proc` and `/sys` are; tests give their own.
    """
    checks: tuple[Callable[[], Iterable[Finding]], ...] = (
        check_python,
        check_packages,
        check_ros,
        lambda: check_dds(root),
        lambda: check_clock(root),
        lambda: check_cpu(root),
        check_realtime,
        lambda: check_serial(root),
        lambda: check_cameras(root),
        lambda: check_calibration(calibration),
        lambda: check_disk(Path.cwd()),
    )
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check()
        except Exception as error:  # a doctor that faints helps nobody
            findings.append(Finding("doctor", WARN, f"a check failed: {type(error).__name__}: {error}"))
    return findings


def check_python() -> list[Finding]:
    """Version and platform."""
    version = ".".join(map(str, sys.version_info[:3]))
    low, high = (".".join(map(str, v)) for v in PYTHONS)
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        return [
            Finding(
                "python", BAD, f"Python {version}; needs {low} to {high}", "install one of them, then ./tt"
            )
        ]
    machine = platform.machine()
    if machine != "x86_64":
        text = f"Python {version} on {machine}: there are ROS wheels for x86_64 only"
        return [
            Finding("python", WARN, text, "install ROS 2 Jazzy from its own packages and build with colcon")
        ]
    return [Finding("python", OK, f"Python {version} on {machine}")]


def check_packages() -> list[Finding]:
    """Importable packages with their versions."""
    missing, found = [], []
    for module, package in PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            missing.append((module, package))
            continue
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    findings = [Finding("packages", OK, ", ".join(found))] if found else []
    for module, package in missing:
        use = OPTIONAL.get(module)
        text = f"{package} is missing" + (f": no {use}" if use else "")
        findings.append(Finding("packages", WARN if use else BAD, text, f"python3 -m pip install {package}"))
    return findings


def check_ros() -> list[Finding]:
    """ROS 2 from its installation or from wheels, and the message packages."""
    try:
        import rclpy
        from rclpy.utilities import get_rmw_implementation_identifier
    except ImportError as error:
        return [
            Finding(
                "ros", BAD, f"rclpy cannot be imported: {error}", "./tt doctor, which installs the wheels"
            )
        ]
    distro = os.environ.get("ROS_DISTRO")
    where = f"ROS 2 {distro}" if distro else f"wheels in {Path(rclpy.__file__).parents[4]}"
    findings = [Finding("ros", OK, f"{where}, {get_rmw_implementation_identifier()}")]
    lacking = [name for name in MESSAGE_PACKAGES if importlib.util.find_spec(name) is None]
    if lacking:
        fix = "sudo apt install " + " ".join(
            f"ros-{distro or 'jazzy'}-{n.replace('_', '-')}" for n in lacking
        )
        findings.append(Finding("ros", BAD, f"message packages are missing: {', '.join(lacking)}", fix))
    for program, use in (("rviz2", "rviz2"), ("robot_state_publisher", "TF of the robot")):
        if distro and not _ros_package(program):
            fix = f"sudo apt install ros-{distro}-{program.replace('_', '-')}"
            findings.append(Finding("ros", INFO, f"{program} is not installed: no {use}", fix))
    return findings


def check_dds(root: Path = Path("/")) -> list[Finding]:
    """Discovery settings, the shipped profile, and room for shared memory."""
    findings = []
    variable = "FASTRTPS_DEFAULT_PROFILES_FILE"
    profile = os.environ.get(variable) or os.environ.get("FASTDDS_DEFAULT_PROFILES_FILE")
    if not profile:
        text = "no Fast DDS profile: pictures of 1280×800 px get lost without a word"
        findings.append(Finding("dds", WARN, text, "start through ./tt or the launch files, which set it"))
    elif not Path(profile).is_file():
        findings.append(
            Finding("dds", BAD, f"{variable} names {profile}, which does not exist", f"unset {variable}")
        )
    else:
        findings.append(Finding("dds", OK, f"profile {Path(profile).name}"))
    domain = os.environ.get("ROS_DOMAIN_ID", "0")
    reach = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
    if not domain.isdigit() or int(domain) > 101:
        findings.append(
            Finding("dds", BAD, f"ROS_DOMAIN_ID is {domain}; 0 to 101 work", "export ROS_DOMAIN_ID=0")
        )
    elif reach.upper() == "OFF":
        text = "ROS_AUTOMATIC_DISCOVERY_RANGE is OFF: nodes never find each other"
        findings.append(Finding("dds", BAD, text, "export ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST"))
    else:
        findings.append(Finding("dds", OK, f"domain {domain}, discovery {reach.lower()}"))
    shm = root / "dev/shm"
    if shm.is_dir():
        free_mb = shutil.disk_usage(shm).free / 1e6
        left = sum(1 for _ in shm.glob("fastrtps_*")) + sum(1 for _ in shm.glob("fastdds_*"))
        fix = "stop all ROS programs, then: fastdds shm clean"
        if free_mb < 300.0:
            findings.append(
                Finding("dds", BAD, f"{free_mb:.0f} MB of shared memory are free; needs 300", fix)
            )
        elif left > 300:
            findings.append(
                Finding("dds", WARN, f"{left} shared memory segments, most from killed nodes", fix)
            )
        else:
            findings.append(Finding("dds", OK, f"{free_mb:.0f} MB of shared memory are free"))
    return findings


def check_clock(root: Path = Path("/")) -> list[Finding]:
    """A plausible wall clock, and how well a thread sleeps."""
    findings = []
    year = time.gmtime().tm_year
    if year < 2025:
        findings.append(Finding("clock", BAD, f"the clock says {year}", "sudo timedatectl set-ntp true"))
    source = root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
    with contextlib.suppress(OSError):
        name = source.read_text().strip()
        good = name in ("tsc", "kvm-clock", "arch_sys_counter")
        fix = "" if good else "add clocksource=tsc to the kernel command line"
        findings.append(Finding("clock", OK if good else WARN, f"clock source {name}", fix))
    errors = []
    for _ in range(SLEEP_TRIALS):
        before = time.perf_counter()
        time.sleep(SLEEP_S)
        errors.append((time.perf_counter() - before - SLEEP_S) * 1e3)
    errors.sort()
    median, worst = errors[len(errors) // 2], errors[-1]
    good = median < MAX_SLEEP_ERROR_MS
    text = f"a sleep of 1 ms ends {median:.2f} ms late (median of {SLEEP_TRIALS}), {worst:.1f} ms at worst"
    findings.append(Finding("clock", OK if good else WARN, text, "" if good else "close other programs"))
    return findings


def check_cpu(root: Path = Path("/")) -> list[Finding]:
    """Number of cores and frequency governor."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    findings = [Finding("cpu", OK, f"{count} cores")] if count >= 2 else []
    if count < 2:
        text = "1 core: the simulation will not keep real time"
        findings.append(Finding("cpu", WARN, text, "tt sim --time-scale 0.3"))
    governors = set()
    for file in (root / "sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor"):
        with contextlib.suppress(OSError):
            governors.add(file.read_text().strip())
    if governors and governors != {"performance"}:
        fix = "sudo cpupower frequency-set -g performance"
        findings.append(Finding("cpu", WARN, f"frequency governor {', '.join(sorted(governors))}", fix))
    elif governors:
        findings.append(Finding("cpu", OK, "frequency governor performance"))
    return findings


def check_realtime() -> list[Finding]:
    """The right to run the motor loop with real-time priority."""
    import resource

    if not hasattr(resource, "RLIMIT_RTPRIO"):
        return [Finding("realtime", INFO, "real-time priorities are not known on this system")]
    limit = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    if os.geteuid() == 0 or limit < 0 or limit >= RT_PRIORITY:
        return [Finding("realtime", OK, "the motor loop may run with real-time priority")]
    user = pwd.getpwuid(os.geteuid()).pw_name
    fix = f"echo '{user} - rtprio {RT_PRIORITY}' | sudo tee /etc/security/limits.d/tt.conf, then log in again"
    return [Finding("realtime", WARN, "no right to real-time priority: the motor loop will jitter", fix)]


def check_serial(root: Path = Path("/")) -> list[Finding]:
    """Adapters of the motor bus and the right to open them."""
    by_id = root / "dev/serial/by-id"
    ports = sorted(by_id.iterdir()) if by_id.is_dir() else []
    ports = ports or sorted((root / "dev").glob("ttyACM*"))
    can = (
        [path.name for path in (root / "sys/class/net").glob("can*")]
        if (root / "sys/class/net").is_dir()
        else []
    )
    findings = [Finding("serial", OK, f"CAN interface {name}") for name in sorted(can)]
    if not ports and not can:
        return [Finding("serial", INFO, "no motor bus adapter (fdcanusb or CAN interface) is plugged in")]
    for port in ports:
        name = f"{port.name}{' (fdcanusb)' if 'fdcanusb' in port.name.lower() else ''}"
        if os.access(port, os.R_OK | os.W_OK):
            findings.append(Finding("serial", OK, name))
        else:
            group = "dialout"
            with contextlib.suppress(OSError, KeyError):
                group = grp.getgrgid(port.stat().st_gid).gr_name
            fix = f"sudo usermod -aG {group} $USER, then log in again"
            findings.append(Finding("serial", BAD, f"{name} may not be opened by this user", fix))
    return findings


def check_cameras(root: Path = Path("/")) -> list[Finding]:
    """Cameras: V4L2 devices, and the SDK of Basler cameras."""
    devices = sorted((root / "dev").glob("video*"))
    findings = []
    for device in devices:
        name = device.name
        with contextlib.suppress(OSError):
            name += " " + (root / "sys/class/video4linux" / device.name / "name").read_text().strip()
        if os.access(device, os.R_OK | os.W_OK):
            findings.append(Finding("cameras", OK, name))
        else:
            findings.append(
                Finding(
                    "cameras",
                    BAD,
                    f"{name} may not be opened",
                    "sudo usermod -aG video $USER, then log in again",
                )
            )
    if importlib.util.find_spec("pypylon") is not None:
        findings.append(Finding("cameras", OK, "pypylon is installed (Basler cameras)"))
    if not findings:
        findings.append(Finding("cameras", INFO, "no camera is plugged in; tt sim needs none"))
    return findings


def check_calibration(path: Path | None) -> list[Finding]:
    """Whether a calibration is there, fits its checksums, and is not old."""
    if path is None:
        return [
            Finding(
                "calibration", INFO, "no calibration given: --calibration FILE checks one; tt sim needs none"
            )
        ]
    from tt_perception.camera import load_cameras, rig_checksum
    from tt_perception.errors import TTError

    try:
        cameras = load_cameras(path)
    except TTError as error:
        return [Finding("calibration", BAD, str(error), "tt calibrate extrinsics")]
    names = ", ".join(camera.name for camera in cameras)
    findings = [Finding("calibration", OK, f"{names}; checksum {rig_checksum(cameras)}")]
    if len(cameras) < 2:
        text = "one camera alone cannot tell how far the ball is"
        findings.append(Finding("calibration", BAD, text, "calibrate at least two cameras"))
    age_days = (time.time() - path.stat().st_mtime) / 86400.0
    if age_days > MAX_CALIBRATION_DAYS:
        text = f"the calibration is {age_days:.0f} days old"
        findings.append(
            Finding("calibration", WARN, text, "tt calibrate check, and calibrate again if it warns")
        )
    return findings


def check_disk(folder: Path) -> list[Finding]:
    """Room for recordings."""
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < MIN_FREE_GB:
        text = f"{free_gb:.1f} GB are free in {folder}; recordings need about 1 GB per hour"
        return [Finding("disk", WARN, text, "make room, or record elsewhere: tt record /other/place")]
    return [Finding("disk", OK, f"{free_gb:.0f} GB are free for recordings")]


def as_json(findings: list[Finding]) -> dict[str, Any]:
    """Everything `tt doctor --json` prints."""
    worst = next((level for level in (BAD, WARN) if any(f.level == level for f in findings)), OK)
    return {"state": worst, "findings": [asdict(finding) for finding in findings]}


def _ros_package(name: str) -> bool:
    prefixes = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    return any((Path(p) / "share/ament_index/resource_index/packages" / name).exists() for p in prefixes if p)
