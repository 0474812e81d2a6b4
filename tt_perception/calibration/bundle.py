"""Bundle adjustment over a moving ball: poses of all cameras and every ball position together.

Each observation depends on one camera and one ball position, so the positions are eliminated from the normal
equations (Schur complement) and a step costs little however many positions there are. Frame and scale come
from points of known place, the corners or lines of the table.

Source: B. Triggs et al., Bundle Adjustment: A Modern Synthesis, 1999, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tt_perception.calibration.poses import huber_cost, huber_weights, moved
from tt_perception.camera import CameraModel
from tt_perception.errors import TTError
from tt_perception.location import LocateConfig, LocateReason, Locator
from tt_perception.mix_ups import find_mix_up
from tt_perception.types import CameraDetections

FloatArray = NDArray[np.float64]

MIN_POSITIONS = 60
_MIX_UP_SETS = 60  # looked at for exchanged cameras
_HUBER = 2.0  # sigma, from which on the loss grows linearly
_MAX_RESIDUAL = 6.0  # sigma, beyond which an observation is dropped


class BundleError(TTError):
    """Recordings that cannot determine the calibration."""


@dataclass(frozen=True)
class Observations:
    """Which camera saw which ball position where.

    Attributes:
        camera: index of the camera, shape (n,).
        position: index of the ball position, shape (n,).
        uv_px: raw pixels, shape (n, 2).
        stamps_ns: stamp of each ball position, shape (m,).
        points_table: rough ball positions, shape (m, 3), m.
    """

    camera: NDArray[np.int64]
    position: NDArray[np.int64]
    uv_px: FloatArray
    stamps_ns: NDArray[np.int64]
    points_table: FloatArray


@dataclass(frozen=True)
class Anchor:
    """Points of known place that a camera saw; they fix frame and scale.

    Attributes:
        camera: index of the camera.
        points_table: shape (k, 3), m.
        uv_px: raw pixels, shape (k, 2).
        sigma_px: standard deviation of a pixel coordinate.
    """

    camera: int
    points_table: FloatArray
    uv_px: FloatArray
    sigma_px: float


@dataclass(frozen=True)
class BundleResult:
    """Adjusted cameras.

    Attributes:
        cameras: with their new poses.
        points_table: ball positions, shape (m, 3), m.
        residuals_px: of the kept observations, shape (k, 2).
        observations: the kept ones.
        rms_px: root mean square per coordinate.
        sigma_m: standard deviation of each camera centre, shape (c,), m.
        iterations: steps taken.
    """

    cameras: tuple[CameraModel, ...]
    points_table: FloatArray
    residuals_px: FloatArray
    observations: Observations
    rms_px: float
    sigma_m: FloatArray
    iterations: int


def gather(
    detections: Sequence[CameraDetections],
    cameras: Sequence[CameraModel],
    tolerance_ns: int = 100_000,
    rough_sigma_px: float = 6.0,
) -> Observations:
    """Put detections of equal stamps together and keep those that agree with the rough poses.

    Args:
        detections: of all cameras, any order.
        cameras: rough calibration.
        tolerance_ns: stamps this near are equal.
        rough_sigma_px: how wrong the rough poses may be, px.

    Raises:
        BundleError: too few positions that two cameras agree on.
    """
    index = {camera.name: number for number, camera in enumerate(cameras)}
    wide = LocateConfig(
        gate_sigma=4.0, pair_gate_sigma=4.0, lone_pair_gate_sigma=3.0,
        bounds_table=((-2.5, -4.0, -0.8), (2.5, 4.0, 2.5)), max_std_m=1.0,
    )  # fmt: skip
    locator = Locator(cameras, wide)
    rows: list[tuple[int, int, float, float]] = []
    stamps: list[int] = []
    points: list[FloatArray] = []
    group: list[CameraDetections] = []
    sets: list[list[FloatArray | None]] = []

    def close() -> None:
        views: list[FloatArray | None] = [None] * len(cameras)
        for item in group:
            views[index[item.camera]] = item.uv_px
        sets.append(views)
        location = locator.locate(views, rough_sigma_px)
        if location.reason is not LocateReason.OK or location.ambiguous:
            return
        for view in location.inliers:
            u, v = views[view][location.choice[view]]  # type: ignore[index]
            rows.append((view, len(points), float(u), float(v)))
        stamps.append(group[0].stamp_ns)
        points.append(location.point_table)

    for item in sorted((item for item in detections if item.camera in index), key=lambda item: item.stamp_ns):
        if group and item.stamp_ns - group[0].stamp_ns > tolerance_ns:
            close()
            group = []
        if item.camera not in {member.camera for member in group}:
            group.append(item)
    if group:
        close()
    counts = np.bincount([view for view, *_ in rows], minlength=len(cameras))
    if min(len(points), *counts) < MIN_POSITIONS:
        mistake = find_mix_up(cameras, sets[:: -(-len(sets) // _MIX_UP_SETS) or 1], rough_sigma_px)
        if mistake:
            raise BundleError(
                f"the views contradict each other, and agree when {mistake}; correct the rough poses"
            )
    if len(points) < MIN_POSITIONS:
        raise BundleError(
            f"{len(points)} ball positions seen by two cameras or more, needs {MIN_POSITIONS}; record a "
            "ball moving through the whole space for a minute, with synchronised cameras, and check the rough "
            "poses"
        )
    table = np.array(rows)
    return Observations(
        table[:, 0].astype(np.int64),
        table[:, 1].astype(np.int64),
        np.ascontiguousarray(table[:, 2:]),
        np.array(stamps, dtype=np.int64),
        np.array(points),
    )


def adjust(
    cameras: Sequence[CameraModel],
    observations: Observations,
    anchors: Sequence[Anchor],
    sigma_px: float = 0.2,
    iterations: int = 30,
) -> BundleResult:
    """Adjust all poses and ball positions.

    Args:
        cameras: rough poses, good intrinsics.
        observations: from `gather`.
        anchors: table points; without any the frame is undetermined.
        sigma_px: standard deviation of a detected ball centre.
        iterations: at most.

    Raises:
        BundleError: no anchor, or a camera without observations.
    """
    cameras = tuple(cameras)
    if not anchors:
        raise BundleError(
            "no table points given: frame and scale would be free. Give images of the table or its corners"
        )
    counts = np.bincount(observations.camera, minlength=len(cameras))
    for camera, count in zip(cameras, counts, strict=True):
        if count < MIN_POSITIONS // 2:
            raise BundleError(
                f"camera {camera.name!r} agrees with the others in {count} ball positions only; its rough pose is "
                "wrong, its clock is off (`tt calibrate time-offset`), or it does not see the space"
            )
    points = np.array(observations.points_table)
    damping = 1e-4
    obs = observations
    cost = _cost(cameras, points, obs, anchors, sigma_px)
    step_number = 0
    for step_number in range(1, iterations + 1):
        if step_number in (4, 8):
            obs = _without_outliers(cameras, points, obs, sigma_px)
            cost = _cost(cameras, points, obs, anchors, sigma_px)
        reduced, gradient, back = _normal_equations(cameras, points, obs, anchors, sigma_px)
        for _ in range(8):
            damped = reduced + damping * np.diag(np.diag(reduced))
            step = -np.linalg.solve(damped, gradient)
            trial_cameras = tuple(
                moved(camera, step[6 * index : 6 * index + 6]) for index, camera in enumerate(cameras)
            )
            trial_points = points + back(step)
            after = _cost(trial_cameras, trial_points, obs, anchors, sigma_px)
            if after <= cost:
                break
            damping *= 10.0
        else:
            break
        gain = cost - after
        cameras, points, cost = trial_cameras, trial_points, after
        damping = max(damping * 0.1, 1e-10)
        if gain < 1e-7 * max(cost, 1.0) and step_number > 9:
            break
    reduced, _, _ = _normal_equations(cameras, points, obs, anchors, sigma_px)
    covariance = np.linalg.inv(reduced)
    residuals = _residuals(cameras, points, obs)
    spread = max(float(np.sqrt(np.mean(residuals**2))) / sigma_px, 1.0)
    sigma_m = np.array(
        [
            spread * np.sqrt(np.trace(covariance[6 * k + 3 : 6 * k + 6, 6 * k + 3 : 6 * k + 6]))
            for k in range(len(cameras))
        ]
    )
    return BundleResult(
        cameras, points, residuals, obs, float(np.sqrt(np.mean(residuals**2))), sigma_m, step_number
    )


def _residuals(cameras: Sequence[CameraModel], points: FloatArray, obs: Observations) -> FloatArray:
    out = np.empty_like(obs.uv_px)
    for index, camera in enumerate(cameras):
        mine = obs.camera == index
        out[mine] = camera.project(points[obs.position[mine]]) - obs.uv_px[mine]
    return np.nan_to_num(out, nan=1e3)


def _cost(
    cameras: Sequence[CameraModel],
    points: FloatArray,
    obs: Observations,
    anchors: Sequence[Anchor],
    sigma_px: float,
) -> float:
    total = huber_cost(np.linalg.norm(_residuals(cameras, points, obs), axis=1) / sigma_px, _HUBER)
    for anchor in anchors:
        error = np.linalg.norm(cameras[anchor.camera].project(anchor.points_table) - anchor.uv_px, axis=1)
        total += huber_cost(error / anchor.sigma_px, _HUBER)
    return total


def _pose_jacobian(camera: CameraModel, points: FloatArray) -> FloatArray:
    """Change of pixels per pose step, shape (n, 2, 6), by central differences."""
    jacobian = np.empty((len(points), 2, 6))
    for k, size in enumerate([1e-5] * 3 + [1e-4] * 3):
        step = np.zeros(6)
        step[k] = size
        jacobian[:, :, k] = (moved(camera, step).project(points) - moved(camera, -step).project(points)) / (
            2.0 * size
        )
    return np.nan_to_num(jacobian)


def _point_jacobian(camera: CameraModel, points: FloatArray) -> FloatArray:
    """Change of pixels per metre of the point, shape (n, 2, 3)."""
    jacobian = np.empty((len(points), 2, 3))
    for k in range(3):
        step = np.zeros(3)
        step[k] = 1e-4
        jacobian[:, :, k] = (camera.project(points + step) - camera.project(points - step)) / 2e-4
    return np.nan_to_num(jacobian)


def _normal_equations(cameras, points, obs, anchors, sigma_px):  # type: ignore[no-untyped-def]
    """Schur complement over the ball positions.

    Returns:
        Reduced matrix (6c, 6c), reduced gradient (6c,), and the function that gives the step of the
        positions for a step of the poses.
    """
    size = 6 * len(cameras)
    matrix = np.zeros((size, size))
    gradient = np.zeros(size)
    point_matrix = np.zeros((len(points), 3, 3))
    point_gradient = np.zeros((len(points), 3))
    coupling = np.zeros((len(points), size, 3))
    residuals = _residuals(cameras, points, obs)
    weights = huber_weights(np.linalg.norm(residuals, axis=1) / sigma_px, _HUBER) / sigma_px**2
    for index, camera in enumerate(cameras):
        mine = obs.camera == index
        where = obs.position[mine]
        a, b = _pose_jacobian(camera, points[where]), _point_jacobian(camera, points[where])
        w, r = weights[mine], residuals[mine]
        part = slice(6 * index, 6 * index + 6)
        matrix[part, part] += np.einsum("nij,nik,n->jk", a, a, w)
        gradient[part] += np.einsum("nij,ni,n->j", a, r, w)
        np.add.at(point_matrix, where, np.einsum("nij,nik,n->njk", b, b, w))
        np.add.at(point_gradient, where, np.einsum("nij,ni,n->nj", b, r, w))
        coupling[where, part] += np.einsum("nij,nik,n->njk", a, b, w)
    for anchor in anchors:
        camera = cameras[anchor.camera]
        a = _pose_jacobian(camera, anchor.points_table)
        r = camera.project(anchor.points_table) - anchor.uv_px
        w = huber_weights(np.linalg.norm(r, axis=1) / anchor.sigma_px, _HUBER) / anchor.sigma_px**2
        part = slice(6 * anchor.camera, 6 * anchor.camera + 6)
        matrix[part, part] += np.einsum("nij,nik,n->jk", a, a, w)
        gradient[part] += np.einsum("nij,ni,n->j", a, r, w)
    point_matrix += 1e-6 * np.eye(3)
    inverse = np.linalg.inv(point_matrix)
    eliminated = coupling @ inverse
    matrix -= np.einsum("nij,nkj->ik", eliminated, coupling)
    gradient -= np.einsum("nij,nj->i", eliminated, point_gradient)

    def back(step: FloatArray) -> FloatArray:
        rest = point_gradient + np.einsum("nij,i->nj", coupling, step)
        return -np.einsum("nij,nj->ni", inverse, rest)

    return matrix, gradient, back


def _without_outliers(
    cameras: Sequence[CameraModel], points: FloatArray, obs: Observations, sigma_px: float
) -> Observations:
    """Drop observations far off, and positions that fewer than two cameras still see."""
    size = np.linalg.norm(_residuals(cameras, points, obs), axis=1)
    limit = _MAX_RESIDUAL * max(sigma_px, 1.4826 * float(np.median(size)) / 1.18)
    keep = size < limit
    seen = np.bincount(obs.position[keep], minlength=len(points))
    keep &= seen[obs.position] >= 2
    return replace(obs, camera=obs.camera[keep], position=obs.position[keep], uv_px=obs.uv_px[keep])
