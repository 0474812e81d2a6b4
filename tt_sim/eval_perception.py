"""Perception against known truth: rendered rallies, triangulation with outliers, and time per stage.

Definitions of the outlier simulation (that of Gomez-Gonzalez et al., Reliable Real-Time Ball Tracking for
Robot Table Tennis, 2019, as far as published): points uniform over the space a ball is played in, seen by
cameras around the table; each camera independently reports the projection with Gaussian noise of
`OUTLIER_NOISE_PX` per axis or, with the given probability, a pixel uniform over its image. `error_m` is the
mean distance over the results that are given (gross mistakes included), a failure is a point without a
result, or with one that is flagged as ambiguous.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tt_perception.camera import CameraModel, default_sim_cameras, look_at
from tt_perception.detection import Detector, detector_for
from tt_perception.location import LocateReason, Locator
from tt_perception.triangulation import Triangulator, TriangulatorConfig
from tt_perception.types import BallPosition, CameraDetections
from tt_sim.ball import Ball
from tt_sim.ball_file import world_model
from tt_sim.ball_server import sample_balls
from tt_sim.render import MovingBall, RenderConfig, RenderedCameras

FloatArray = NDArray[np.float64]
Progress = Callable[[str, int, int], None]  # told what is being done, how much of it is done, and of how much

OUTLIER_NOISE_PX = 1.0
_PLAY_LOW = np.array([-0.8, -1.8, 0.0])  # space of the outlier simulation, m
_PLAY_HIGH = np.array([0.8, 1.8, 0.8])
_CHI2_3_95 = 7.814728  # 95 % of a chi-square variable with 3 degrees of freedom
_EDGE_PX = 8.0  # a ball nearer to the border is cut
_FIRST_STAMP_NS = 1_000_000_000


def _tell_nobody(_what: str, _done: int, _total: int) -> None:
    pass


@dataclass(frozen=True)
class PerceptionEvalConfig:
    """What to render and how to see it.

    Attributes:
        balls: rallies (one served ball each).
        fps: trigger rate, Hz.
        width: image width, px.
        height: image height, px.
        seed: of balls and noise.
        pixel_sigma: what the triangulation is told about the pixels, px.
        render: scene and sensor.
        detector: settings of the detector that differ from those a camera's place gives.
        outlier_points: points per row of the outlier simulation.
    """

    balls: int = 20
    fps: float = 120.0
    width: int = 1280
    height: int = 800
    seed: int = 1
    pixel_sigma: float = 0.2
    render: RenderConfig = field(
        default_factory=lambda: RenderConfig(flicker=0.02, drift=0.08, second_ball=True, person=True)
    )
    detector: dict[str, Any] = field(default_factory=dict)
    outlier_points: int = 5000


@dataclass
class _Scores:
    """What the rendered rallies gave."""

    errors: list[float] = field(default_factory=list)
    nees: list[float] = field(default_factory=list)
    pixels: list[float] = field(default_factory=list)
    frames: int = 0
    frames_visible: int = 0
    frames_located: int = 0
    views: int = 0
    views_found: int = 0
    false_candidates: int = 0
    images: int = 0
    ambiguous: int = 0


def evaluate(config: PerceptionEvalConfig, progress: Progress = _tell_nobody) -> dict[str, Any]:
    """Run everything; returns the JSON object of `tt eval perception`."""
    rendered = evaluate_rendered(config, progress)
    outliers = []
    rows = [(count, share) for count in (4, 8) for share in (0.01, 0.10, 0.25, 0.50)]
    for done, (count, share) in enumerate(rows):
        progress("triangulation with outliers", done, len(rows))
        outliers.append(evaluate_outliers(count, share, config.outlier_points, config.seed))
    progress("time per stage", len(rows), len(rows))
    return {"rendered": rendered, "outliers": outliers, "timing_us": measure_times(config)}


def evaluate_rendered(config: PerceptionEvalConfig, progress: Progress = _tell_nobody) -> dict[str, Any]:
    """Render rallies, detect and triangulate them, and compare with the truth."""
    cameras = default_sim_cameras(config.width, config.height)
    rig = RenderedCameras(cameras, config.render, config.seed)
    detectors = [
        Detector(camera.name, detector_for(camera, config.render.exposure_s, **config.detector))
        for camera in cameras
    ]
    triangulator = Triangulator(cameras, TriangulatorConfig(pixel_sigma=config.pixel_sigma))
    period_ns = round(1e9 / config.fps)
    stamp_ns = _FIRST_STAMP_NS
    for _ in range(detector_for(cameras[0]).background_images + 2):
        for detector, image in zip(detectors, rig.render(stamp_ns * 1e-9), strict=True):
            detector.detect(image, stamp_ns)
        stamp_ns += period_ns
    scores = _Scores()
    ball = Ball(world_model("nominal"))
    served = sample_balls(config.seed)
    for number in range(config.balls):
        ball.reset(next(served).state)
        track: list[tuple[int, FloatArray]] = []
        while ball.state[1] > -2.3 and ball.state[2] > -0.35 and ball.time_s < 2.0:
            progress("rendering rallies", number, config.balls)
            truth = MovingBall(ball.state[:3].copy(), ball.state[3:6].copy())
            position = _one_trigger(rig, detectors, triangulator, stamp_ns, truth, track, scores)
            if position is not None and not position.ambiguous:
                track.append((stamp_ns, position.pos_table))
            ball.advance(1.0 / config.fps)
            stamp_ns += period_ns
        # Half a second without a ball: detectors and tracks must let go of it.
        stamp_ns += round(0.5e9)
    errors = np.array(scores.errors) if scores.errors else np.array([np.nan])
    return {
        "balls": config.balls,
        "frames": scores.frames,
        "image_size": [config.width, config.height],
        "fps": config.fps,
        "median_m": float(np.median(errors)),
        "p95_m": float(np.percentile(errors, 95)),
        "max_m": float(errors.max()),
        "detected_share": scores.frames_located / max(scores.frames_visible, 1),
        "view_detected_share": scores.views_found / max(scores.views, 1),
        "false_candidates_per_image": scores.false_candidates / max(scores.images, 1),
        "pixel_median": float(np.median(scores.pixels)) if scores.pixels else float("nan"),
        "pixel_p95": float(np.percentile(scores.pixels, 95)) if scores.pixels else float("nan"),
        "covariance_within_95": float(np.mean(np.array(scores.nees) <= _CHI2_3_95)) if scores.nees else 0.0,
        "ambiguous": scores.ambiguous,
    }


def _one_trigger(  # noqa: PLR0917
    rig: RenderedCameras,
    detectors: Sequence[Detector],
    triangulator: Triangulator,
    stamp_ns: int,
    truth: MovingBall,
    track: Sequence[tuple[int, FloatArray]],
    scores: _Scores,
) -> BallPosition | None:
    """Render, detect and triangulate one trigger; book the errors."""
    images = rig.render(stamp_ns * 1e-9, [truth])
    expected = _expected(track, stamp_ns)
    results = []
    visible = 0
    for renderer, detector, image in zip(rig.renderers, detectors, images, strict=True):
        camera = renderer.camera
        region = None if expected is None else camera.project(expected)
        detections = detector.detect(image, stamp_ns, expected_px=region)
        results.extend(triangulator.add(detections, stamp_ns))
        uv = camera.project(truth.pos_table)
        seen = bool(camera.in_image(uv, _EDGE_PX)[0]) and not renderer.hidden(
            stamp_ns * 1e-9, truth.pos_table
        )
        distances = np.linalg.norm(detections.uv_px - uv, axis=1)
        near = bool(len(distances)) and bool(distances.min() < 3.0)
        scores.images += 1
        scores.false_candidates += int(np.sum(distances >= 3.0))
        if seen:
            visible += 1
            scores.views += 1
            scores.views_found += near
            if near:
                scores.pixels.append(float(distances.min()))
    results.extend(triangulator.flush(stamp_ns + 1_000_000_000))
    scores.frames += 1
    scores.frames_visible += visible >= 2
    position = next((item for item in results if isinstance(item, BallPosition)), None)
    if position is None:
        return None
    scores.frames_located += visible >= 2
    scores.ambiguous += position.ambiguous
    error = position.pos_table - truth.pos_table
    scores.errors.append(float(np.linalg.norm(error)))
    scores.nees.append(float(error @ np.linalg.solve(position.cov, error)))
    return position


def _expected(track: Sequence[tuple[int, FloatArray]], stamp_ns: int) -> FloatArray | None:
    """Where the ball should be now, as the filter would tell the detectors."""
    if len(track) < 2 or stamp_ns - track[-1][0] > 50_000_000:
        return None
    (older_ns, older), (newer_ns, newer) = track[-2:]
    return newer + (newer - older) * ((stamp_ns - newer_ns) / (newer_ns - older_ns))


def ring_of_cameras(count: int) -> tuple[CameraModel, ...]:
    """Cameras around the room; the first four are the simulated ones."""
    cameras = list(default_sim_cameras())
    for index in range(count - len(cameras)):
        angle = 2.0 * np.pi * (index + 0.5) / max(count - 4, 1)
        centre = np.array([3.0 * np.cos(angle), 4.4 * np.sin(angle), 1.75])
        first = cameras[0]
        cameras.append(
            CameraModel(
                f"cam{4 + index}",
                first.width,
                first.height,
                first.matrix,
                first.distortion,
                look_at(centre, [0, 0, 0]),
            )
        )
    return tuple(cameras[:count])


def evaluate_outliers(count: int, share: float, points: int, seed: int) -> dict[str, Any]:
    """Monte-Carlo triangulation with outliers; definitions in the module docstring."""
    cameras = ring_of_cameras(count)
    locator = Locator(cameras)
    rng = np.random.default_rng(seed)
    errors = []
    failures = 0
    for point in rng.uniform(_PLAY_LOW, _PLAY_HIGH, (points, 3)):
        views = []
        for camera in cameras:
            if rng.random() < share:
                views.append(rng.uniform([0.0, 0.0], [camera.width - 1.0, camera.height - 1.0]))
            else:
                views.append(camera.project(point) + rng.normal(0.0, OUTLIER_NOISE_PX, 2))
        location = locator.locate(views, OUTLIER_NOISE_PX)
        if location.reason is LocateReason.OK and not location.ambiguous:
            errors.append(float(np.linalg.norm(location.point_table - point)))
        else:
            failures += 1
    values = np.array(errors) if errors else np.array([np.nan])
    return {
        "cameras": count,
        "share": share,
        "error_m": float(values.mean()),
        "error_median_m": float(np.median(values)),
        "gross": float(np.mean(values > 0.1)),
        "failures": failures / points,
    }


def measure_times(config: PerceptionEvalConfig, repeats: int = 300) -> dict[str, float]:
    """Median time of detection and triangulation, µs; the smallest is given too, for busy machines."""
    cameras = default_sim_cameras(config.width, config.height)
    rig = RenderedCameras(cameras[:1], RenderConfig(samples=1, noise_frames=4), config.seed)
    camera = cameras[0]
    detector = Detector(camera.name, detector_for(camera))
    for index in range(detector_for(cameras[0]).background_images + 2):
        detector.detect(rig.render(index / config.fps)[0], 1 + index)
    truth = MovingBall(np.array([0.1, 0.2, 0.3]), np.array([0.5, -6.0, 1.0]))
    image = rig.render(1.0, [truth])[0]
    expected = camera.project(truth.pos_table)
    rng = np.random.default_rng(config.seed)
    locator = Locator(cameras)
    views = [item.project(truth.pos_table) + rng.normal(0.0, 0.2, 2) for item in cameras]

    def region() -> None:
        detector.restart_region_count()
        detector.detect(image, 1, expected_px=expected)

    result: dict[str, float] = {}
    for name, action in (
        ("detect_full", lambda: detector.detect(image, 1)),
        ("detect_roi", region),
        ("triangulate", lambda: locator.locate(views, config.pixel_sigma)),
    ):
        spent = []
        for _ in range(repeats):
            began = time.perf_counter()
            action()
            spent.append(time.perf_counter() - began)
        result[name] = float(np.median(spent) * 1e6)
        result[name + "_min"] = float(np.min(spent) * 1e6)
    return result


def rendered_detections(
    cameras: Sequence[CameraModel],
    balls: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    fps: float = 120.0,
) -> list[CameraDetections]:
    """What the detectors report of rendered rallies, for calibrations from a moving ball.

    Args:
        cameras: the rig. balls: how many rallies. seed: of balls and noise.
        progress: told how many triggers are rendered, and of how many.
        fps: trigger rate, Hz.
    """
    rig = RenderedCameras(cameras, RenderConfig(), seed)
    detectors = [Detector(camera.name, detector_for(camera)) for camera in cameras]
    results: list[CameraDetections] = []
    triggers = list(_flights(balls, seed, fps))
    for done, (stamp_ns, truth) in enumerate(triggers):
        progress(done, len(triggers))
        images = rig.render(stamp_ns * 1e-9, [] if truth is None else [truth])
        found = [detector.detect(image, stamp_ns) for detector, image in zip(detectors, images, strict=True)]
        if truth is not None:
            results.extend(found)
    return results


def simulated_detections(  # noqa: PLR0917
    cameras: Sequence[CameraModel],
    balls: int,
    seed: int,
    offsets_s: Sequence[float],
    sigma_px: float,
    fps: float = 120.0,
) -> list[CameraDetections]:
    """Projected balls with noise, of cameras whose stamps are late by `offsets_s`."""
    rng = np.random.default_rng(seed)
    results = []
    for stamp_ns, truth in _flights(balls, seed, fps):
        if truth is None:
            continue
        for camera, offset in zip(cameras, offsets_s, strict=True):
            uv = camera.project(truth.pos_table - offset * truth.vel_table) + rng.normal(0.0, sigma_px, 2)
            if camera.in_image(uv)[0]:
                results.append(
                    CameraDetections(camera.name, stamp_ns, uv[None], np.array([4.0]), np.array([1.0]))
                )
    return results


def _flights(balls: int, seed: int, fps: float) -> Iterator[tuple[int, MovingBall | None]]:
    """Stamps and balls of served flights; None between them, also while the detectors learn the
    background.
    """
    ball = Ball(world_model("nominal"))
    served = sample_balls(seed)
    stamp_ns = _FIRST_STAMP_NS
    period_ns = round(1e9 / fps)
    for _ in range(balls):
        for _ in range(12):
            yield stamp_ns, None
            stamp_ns += period_ns
        ball.reset(next(served).state)
        while ball.state[1] > -2.2 and ball.state[2] > -0.3 and ball.time_s < 1.6:
            yield stamp_ns, MovingBall(ball.state[:3].copy(), ball.state[3:6].copy())
            ball.advance(1.0 / fps)
            stamp_ns += period_ns
        stamp_ns += 500_000_000
