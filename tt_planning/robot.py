"""A robot: its YAML (limits, racket, motor map, poses) checked against its URDF.

Values are SI and radians. The joint order of the YAML is the order of every joint vector in the project.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import yaml
from numpy.typing import NDArray

from tt_perception.table import BALL_RADIUS_M
from tt_planning.errors import RobotError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Racket:
    """Blade of the racket: a box with its centre at the origin of the URDF link.

    Attributes:
        link: name of the URDF link; +y out of the hitting face, +z from handle to tip.
        width, height, thickness: extent along the racket's x, z, y, m.
        length: distance from the last axis to the centre of the blade, m.
    """

    link: str
    width: float
    height: float
    thickness: float
    length: float

    @property
    def contact_offset_m(self) -> float:
        """Distance from the blade's centre plane to the ball's centre while they touch."""
        return 0.5 * self.thickness + BALL_RADIUS_M


@dataclass(frozen=True, slots=True)
class Motor:
    """One motor board and how its turns become a joint position.

    position [rev] = sign · turns_per_unit · (joint − zero), in turns of the output that the board reports.

    Attributes:
        joint: name of the joint it drives.
        id: moteus id on the bus.
        turns_per_unit: rev/m or rev/rad.
        sign: +1 or −1.
        zero: joint position (m or rad) where the board reads 0 rev.
        kp: N m/rev. kd: N m/(rev/s). max_torque: N m at the output.
    """

    joint: str
    id: int
    turns_per_unit: float
    sign: int
    zero: float
    kp: float
    kd: float
    max_torque: float


@dataclass(frozen=True, slots=True)
class RobotModel:
    """Everything planning, control and simulation know about a robot.

    Attributes:
        name: of the robot.
        kinematics: `gantry` (closed form) or `serial` (numerical, from the URDF).
        joint_names: order of all joint vectors.
        lower, upper: position limits, shape (n,), m or rad.
        max_vel, max_acc: shape (n,), m/s or rad/s, m/s² or rad/s².
        max_effort: shape (n,), N or N m at the joint.
        home, ready: joint positions, shape (n,).
        racket: the blade.
        motors: one per joint, in joint order.
        urdf_path: absolute path of the URDF.
        urdf: its text, what `robot_description` carries.
        base_pos_table: origin of `robot_base` in `table`, shape (3,), m.
        control: the optional section `control` as it stands in the YAML; tt_control reads and checks it.
    """

    name: str
    kinematics: str
    joint_names: tuple[str, ...]
    lower: FloatArray
    upper: FloatArray
    max_vel: FloatArray
    max_acc: FloatArray
    max_effort: FloatArray
    home: FloatArray
    ready: FloatArray
    racket: Racket
    motors: tuple[Motor, ...]
    urdf_path: Path
    urdf: str = field(repr=False)
    base_pos_table: FloatArray
    control: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def joint_count(self) -> int:
        """Number of joints."""
        return len(self.joint_names)


_TOP_KEYS = {"name", "kinematics", "urdf", "racket", "joints", "home", "ready", "motors"}
_RACKET_KEYS = {"link", "width", "height", "thickness", "length"}
_JOINT_KEYS = {"lower", "upper", "velocity", "acceleration", "effort"}
_MOTOR_KEYS = {"id", "turns_per_unit", "sign", "zero", "kp", "kd", "max_torque"}
_GANTRY_JOINTS = (("x", "z", "yaw", "pitch"), ("x", "y", "z", "yaw", "pitch"))


def robots_dirs() -> list[Path]:
    """Folders with shipped robots: beside the package, then in the installed share folders."""
    dirs = []
    spec = importlib.util.find_spec("tt_bringup")
    if spec is not None and spec.submodule_search_locations:
        dirs.append(Path(next(iter(spec.submodule_search_locations))) / "config" / "robots")
    prefixes = [p for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p]
    dirs += [Path(p) / "share" / "tt_bringup" / "config" / "robots" for p in [*prefixes, sys.prefix]]
    return [d for d in dirs if d.is_dir()]


def available_robots() -> list[str]:
    """Names of the shipped robots, sorted."""
    return sorted({p.stem for d in robots_dirs() for p in d.glob("*.yaml")})


def load_robot(name_or_path: str | Path) -> RobotModel:
    """Load a shipped robot by name, or any robot by the path of its YAML.

    Raises:
        RobotError: unknown name, unreadable file, or an entry that is missing, misspelt or inconsistent
            with the URDF; the text names the file, the entry and what is allowed.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        found = [d / f"{name_or_path}.yaml" for d in robots_dirs()]
        found = [p for p in found if p.is_file()]
        if not found:
            raise RobotError(
                f"unknown robot '{name_or_path}'; known robots: {', '.join(available_robots()) or 'none'}; "
                "or give the path of a robot YAML file"
            )
        path = found[0]
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RobotError(f"robot file {path} does not exist; give the path of a robot YAML file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RobotError(f"robot file {path} cannot be read: {str(error).splitlines()[0]}") from None
    return _build(path, data)


def _build(path: Path, data: Any) -> RobotModel:
    control: Any = {}
    if isinstance(data, Mapping) and "control" in data:
        control = data["control"] or {}
        data = {key: value for key, value in data.items() if key != "control"}
        if not isinstance(control, Mapping):
            raise RobotError(f"{path}: control must be a table; leave it out for the defaults")
    top = _table(path, "the file", data, _TOP_KEYS)
    kinematics = top["kinematics"]
    if kinematics not in ("gantry", "serial"):
        raise RobotError(f"{path}: kinematics is {kinematics!r}; allowed are gantry and serial")
    racket_data = _table(path, "racket", top["racket"], _RACKET_KEYS)
    dims = {
        k: _number(path, f"racket.{k}", racket_data[k], 1e-3, 1.0) for k in sorted(_RACKET_KEYS - {"link"})
    }
    racket = Racket(link=str(racket_data["link"]), **dims)

    if not isinstance(top["joints"], Mapping) or not top["joints"]:
        raise RobotError(f"{path}: joints must be a table with one entry per joint")
    names = tuple(str(n) for n in top["joints"])
    rows = [_table(path, f"joints.{n}", top["joints"][n], _JOINT_KEYS) for n in names]

    def column(key: str, low: float = -np.inf) -> FloatArray:
        values = [_number(path, f"joints.{n}.{key}", r[key], low) for n, r in zip(names, rows)]
        return _frozen(values)

    lower, upper = column("lower"), column("upper")
    for n, low, high in zip(names, lower, upper):
        if not low < high:
            raise RobotError(f"{path}: joints.{n}: lower {low:g} is not below upper {high:g}")
    max_vel, max_acc, max_effort = (column(k, 1e-6) for k in ("velocity", "acceleration", "effort"))
    if kinematics == "gantry" and names not in _GANTRY_JOINTS:
        raise RobotError(
            f"{path}: a gantry has the joints {' or '.join(', '.join(j) for j in _GANTRY_JOINTS)} in this order, "
            f"not {', '.join(names)}; use kinematics: serial for other robots"
        )

    home, ready = (_pose(path, key, top[key], names, lower, upper) for key in ("home", "ready"))
    motors = _motors(path, top["motors"], names)
    urdf_path = (path.parent / str(top["urdf"])).resolve()
    urdf, base = _check_urdf(path, urdf_path, names, lower, upper, racket.link)
    return RobotModel(
        name=str(top["name"]),
        kinematics=kinematics,
        joint_names=names,
        lower=lower,
        upper=upper,
        max_vel=max_vel,
        max_acc=max_acc,
        max_effort=max_effort,
        home=home,
        ready=ready,
        racket=racket,
        motors=motors,
        urdf_path=urdf_path,
        urdf=urdf,
        base_pos_table=base,
        control=dict(control),
    )


def _frozen(values: Any) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    array.setflags(write=False)
    return array


def _table(path: Path, where: str, data: Any, keys: set[str]) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise RobotError(f"{path}: {where} must be a table with the entries {', '.join(sorted(keys))}")
    for key in data:
        if key not in keys:
            near = difflib.get_close_matches(str(key), sorted(keys), n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; allowed are {', '.join(sorted(keys))}"
            raise RobotError(f"{path}: {where} has an unknown entry '{key}'{hint}")
    missing = sorted(keys - set(data))
    if missing:
        raise RobotError(f"{path}: {where} lacks {', '.join(missing)}")
    return data


def _number(path: Path, where: str, value: Any, low: float = -np.inf, high: float = np.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise RobotError(f"{path}: {where} is {value!r}; it must be a finite number")
    if not low <= value <= high:
        raise RobotError(f"{path}: {where} is {value:g}; allowed is {low:g} to {high:g}")
    return float(value)


def _pose(
    path: Path, key: str, data: Any, names: tuple[str, ...], lower: FloatArray, upper: FloatArray
) -> FloatArray:
    table = _table(path, key, data, set(names))
    return _frozen([_number(path, f"{key}.{n}", table[n], lo, hi) for n, lo, hi in zip(names, lower, upper)])


def _motors(path: Path, data: Any, names: tuple[str, ...]) -> tuple[Motor, ...]:
    table = _table(path, "motors", data, set(names))
    motors = []
    for n in names:
        row = _table(path, f"motors.{n}", table[n], _MOTOR_KEYS)
        motor_id = row["id"]
        if isinstance(motor_id, bool) or not isinstance(motor_id, int) or not 1 <= motor_id <= 126:
            raise RobotError(f"{path}: motors.{n}.id is {motor_id!r}; allowed is 1 to 126")
        if row["sign"] not in (1, -1):
            raise RobotError(f"{path}: motors.{n}.sign is {row['sign']!r}; allowed are 1 and -1")
        values = {
            k: _number(
                path, f"motors.{n}.{k}", row[k], 1e-9 if k in ("turns_per_unit", "max_torque") else low
            )
            for k, low in (
                ("turns_per_unit", 0.0),
                ("zero", -np.inf),
                ("kp", 0.0),
                ("kd", 0.0),
                ("max_torque", 0.0),
            )
        }
        motors.append(Motor(joint=n, id=motor_id, sign=int(row["sign"]), **values))
    ids = [m.id for m in motors]
    for m in motors:
        if ids.count(m.id) > 1:
            raise RobotError(
                f"{path}: motors.{m.joint}.id {m.id} is used twice; each board needs an id of its own"
            )
    return tuple(motors)


def _check_urdf(
    path: Path,
    urdf_path: Path,
    names: tuple[str, ...],
    lower: FloatArray,
    upper: FloatArray,
    racket_link: str,
) -> tuple[str, FloatArray]:
    """Text of the URDF and the position of `robot_base`, after checking it against the YAML."""
    try:
        text = urdf_path.read_text(encoding="utf-8")
        root = ElementTree.fromstring(text)
    except FileNotFoundError:
        raise RobotError(
            f"{path}: urdf {urdf_path} does not exist; the path counts from the YAML file"
        ) from None
    except (OSError, UnicodeDecodeError, ElementTree.ParseError) as error:
        raise RobotError(f"{urdf_path} is not a readable URDF: {error}") from None
    links = [e.get("name") for e in root.findall("link")]
    for wanted in ("table", "robot_base", racket_link):
        if wanted not in links:
            raise RobotError(
                f"{urdf_path}: has no link '{wanted}'; its links are {', '.join(map(str, links))}"
            )
    moving = [j for j in root.findall("joint") if j.get("type") != "fixed"]
    order = tuple(str(j.get("name")) for j in moving)
    if order != names:
        raise RobotError(
            f"{urdf_path}: its moving joints are {', '.join(order) or 'none'}; {path} lists {', '.join(names)}; "
            "both must have the same joints in the same order"
        )
    for joint, low, high in zip(moving, lower, upper):
        limit = joint.find("limit")
        if limit is None:
            continue
        urdf_low, urdf_high = float(limit.get("lower", "-inf")), float(limit.get("upper", "inf"))
        if low < urdf_low - 1e-6 or high > urdf_high + 1e-6:
            raise RobotError(
                f"{path}: joints.{joint.get('name')} allows {low:g} to {high:g}, "
                f"more than the URDF's {urdf_low:g} to {urdf_high:g}"
            )
    for mesh in root.iter("mesh"):
        name = str(mesh.get("filename"))
        if not name.startswith("package://") and not (urdf_path.parent / name).is_file():
            raise RobotError(f"{urdf_path}: mesh {name} does not exist beside the URDF")
    base = np.zeros(3)
    for joint in root.findall("joint"):
        child, origin = joint.find("child"), joint.find("origin")
        if child is not None and child.get("link") == "robot_base" and origin is not None:
            base = np.array([float(v) for v in str(origin.get("xyz", "0 0 0")).split()])
    return text, _frozen(base)
