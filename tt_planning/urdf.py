"""What planning reads of a URDF beyond the joints: origins, and the parts that never move."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def origin(element: ElementTree.Element) -> FloatArray:
    """Transform (4, 4) of the `origin` of a joint or a shape; the identity when there is none."""
    out = np.eye(4)
    found = element.find("origin")
    if found is None:
        return out
    out[:3, 3] = [float(v) for v in str(found.get("xyz", "0 0 0")).split()]
    roll, pitch, yaw = (float(v) for v in str(found.get("rpy", "0 0 0")).split())
    cr, sr, cp, sp, cy, sy = (f(a) for a in (roll, pitch, yaw) for f in (math.cos, math.sin))
    out[:3, :3] = [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ]
    return out


def frame_boxes(urdf: str) -> FloatArray:
    """The robot's own frame: shapes of links fixed to the root link, boxes (centre, half extents) in it, shape (n, 6).

    Collision shapes count where a link has some, else its visual ones; boxes, cylinders and spheres, turned ones as
    the box around them. The root link itself (the table) has none of the robot.
    """
    root = ElementTree.fromstring(urdf)
    joints = root.findall("joint")
    children = {j.find("child").get("link") for j in joints}  # type: ignore[union-attr]
    waiting = [(str(n.get("name")), np.eye(4)) for n in root.findall("link") if n.get("name") not in children]
    links = {str(link.get("name")): link for link in root.findall("link")}
    boxes = []
    while waiting:
        name, pose = waiting.pop()
        boxes += _boxes(links[name], pose)
        for joint in joints:
            parent, child = joint.find("parent"), joint.find("child")
            fixed = joint.get("type") == "fixed" and parent is not None and child is not None
            if fixed and parent.get("link") == name:  # type: ignore[union-attr]
                waiting.append((str(child.get("link")), pose @ origin(joint)))  # type: ignore[union-attr]
    return np.array(boxes).reshape(-1, 6)


def _boxes(link: ElementTree.Element, pose: FloatArray) -> list[FloatArray]:
    found = []
    for shape in link.findall("collision") or link.findall("visual"):
        geometry = shape.find("geometry")
        half = None if geometry is None or not len(geometry) else _half_extents(geometry[0])
        if half is None:
            continue
        at = pose @ origin(shape)
        found.append(np.concatenate([at[:3, 3], np.abs(at[:3, :3]) @ half]))
    return found


def _half_extents(shape: ElementTree.Element) -> FloatArray | None:
    if shape.tag == "box":
        return 0.5 * np.array([float(v) for v in str(shape.get("size")).split()])
    radius = float(shape.get("radius", "nan"))
    if shape.tag == "cylinder":
        return np.array([radius, radius, 0.5 * float(shape.get("length", "nan"))])
    return np.full(3, radius) if shape.tag == "sphere" else None
