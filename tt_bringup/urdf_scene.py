"""The shapes of a URDF and where its joints put them: enough to draw a robot without mesh libraries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from tt_perception.errors import TTError

FloatArray = NDArray[np.float64]
Colour = tuple[float, float, float, float]
_GREY: Colour = (0.6, 0.6, 0.6, 1.0)


class UrdfError(TTError):
    """A text is no URDF that can be drawn."""


@dataclass(frozen=True)
class Visual:
    """One shape of a link.

    Attributes:
        link: link it belongs to.
        kind: `box`, `cylinder` or `sphere`.
        size: box: extents along x, y, z; cylinder: (radius, radius, length); sphere: radius three times; m.
        link_from_visual: pose in the link, shape (4, 4).
        colour: red, green, blue, opacity, 0..1.
    """

    link: str
    kind: str
    size: tuple[float, float, float]
    link_from_visual: FloatArray
    colour: Colour


@dataclass(frozen=True)
class _Joint:
    name: str
    kind: str
    parent: str
    child: str
    parent_from_joint: FloatArray
    axis: FloatArray
    cross: FloatArray
    cross_squared: FloatArray


class UrdfScene:
    """A robot to be drawn.

    Attributes:
        visuals: its shapes; meshes are left out.
        joints: names of the moving joints.
    """

    def __init__(self, urdf: str) -> None:
        """Reads the text of a URDF.

        Raises:
            UrdfError: it is none.
        """
        try:
            root = ElementTree.fromstring(urdf)
            materials = {m.get("name"): _colour(m, {}) for m in root.findall("material")}
            self.visuals = tuple(
                visual
                for link in root.findall("link")
                for shape in link.findall("visual")
                if (visual := _visual(str(link.get("name")), shape, materials)) is not None
            )
            joints = [_joint(element) for element in root.findall("joint")]
        except (ElementTree.ParseError, AttributeError, ValueError) as error:
            raise UrdfError(f"robot_description is no URDF that can be drawn: {error}") from error
        children = {joint.child for joint in joints}
        links = [str(link.get("name")) for link in root.findall("link")]
        self._roots = [link for link in links if link not in children]
        self.joints = tuple(joint.name for joint in joints if joint.kind != "fixed")
        self._joints = _from_the_roots(joints, self._roots)

    def link_poses(self, positions: Mapping[str, float]) -> dict[str, FloatArray]:
        """Pose of every link in the root link, shape (4, 4) each; joints left out stand at zero."""
        poses = {link: np.eye(4) for link in self._roots}
        for joint in self._joints:
            motion = _motion(joint, float(positions.get(joint.name, 0.0)))
            pose = poses[joint.parent] @ joint.parent_from_joint
            poses[joint.child] = pose if motion is None else pose @ motion
        return poses


def rotation_about(axis: FloatArray, angle_rad: float) -> FloatArray:
    """Rotation matrix (3, 3) about a unit axis (Rodrigues)."""
    cross = _cross(axis)
    return np.eye(3) + np.sin(angle_rad) * cross + (1.0 - np.cos(angle_rad)) * (cross @ cross)


def _cross(axis: FloatArray) -> FloatArray:
    x, y, z = axis
    return np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])


def _motion(joint: _Joint, position: float) -> FloatArray | None:
    """Pose after the motion of a joint, shape (4, 4); None when it does not move."""
    if joint.kind == "prismatic":
        pose = np.eye(4)
        pose[:3, 3] = joint.axis * position
        return pose
    if joint.kind in ("revolute", "continuous"):
        pose = np.eye(4)
        pose[:3, :3] += math.sin(position) * joint.cross + (1.0 - math.cos(position)) * joint.cross_squared
        return pose
    return None


def _from_the_roots(joints: Iterable[_Joint], roots: Iterable[str]) -> list[_Joint]:
    """The joints, each behind the one that moves its parent; those that hang on no root are left out."""
    known, waiting, ordered = set(roots), list(joints), []
    while ready := [joint for joint in waiting if joint.parent in known]:
        waiting = [joint for joint in waiting if joint.parent not in known]
        known.update(joint.child for joint in ready)
        ordered += ready
    return ordered


def _numbers(text: str | None, default: str) -> FloatArray:
    return np.array([float(word) for word in (text or default).split()])


def _origin(element: ElementTree.Element) -> FloatArray:
    pose = np.eye(4)
    origin = element.find("origin")
    if origin is not None:
        roll, pitch, yaw = _numbers(origin.get("rpy"), "0 0 0")
        x, y, z = np.eye(3)
        pose[:3, :3] = rotation_about(z, yaw) @ rotation_about(y, pitch) @ rotation_about(x, roll)
        pose[:3, 3] = _numbers(origin.get("xyz"), "0 0 0")
    return pose


def _colour(material: ElementTree.Element | None, named: Mapping[str | None, Colour]) -> Colour:
    if material is None:
        return _GREY
    colour = material.find("color")
    if colour is None:
        return named.get(material.get("name"), _GREY)
    red, green, blue, opacity = _numbers(colour.get("rgba"), "0.6 0.6 0.6 1")
    return float(red), float(green), float(blue), float(opacity)


def _visual(link: str, shape: ElementTree.Element, materials: Mapping[str | None, Colour]) -> Visual | None:
    geometry = shape.find("geometry")
    body = geometry[0] if geometry is not None and len(geometry) else None
    if body is None or body.tag not in ("box", "cylinder", "sphere"):
        return None
    if body.tag == "box":
        x, y, z = _numbers(body.get("size"), "")
    elif body.tag == "cylinder":
        radius, length = _numbers(body.get("radius"), "")[0], _numbers(body.get("length"), "")[0]
        x, y, z = radius, radius, length
    else:
        x = y = z = _numbers(body.get("radius"), "")[0]
    size = (float(x), float(y), float(z))
    return Visual(link, body.tag, size, _origin(shape), _colour(shape.find("material"), materials))


def _joint(element: ElementTree.Element) -> _Joint:
    parent, child, axis = element.find("parent"), element.find("child"), element.find("axis")
    direction = _numbers(axis.get("xyz") if axis is not None else None, "1 0 0")
    unit = direction / np.linalg.norm(direction)
    return _Joint(
        str(element.get("name")),
        str(element.get("type")),
        str(parent.get("link")),  # type: ignore[union-attr]
        str(child.get("link")),  # type: ignore[union-attr]
        _origin(element),
        unit,
        _cross(unit),
        _cross(unit) @ _cross(unit),
    )
