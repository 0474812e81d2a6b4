"""Makes the pictures of the docs from the code: `python docs/pictures.py [--bag RECORDING]`.

Without a recording the golden rally of the tests is drawn. The picture of the viewer needs Chromium and is kept
as it is without one.
"""

from __future__ import annotations

import argparse
import base64
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "img"
GOLDEN = ROOT / "test" / "tools" / "data" / "golden_rally"
sys.path[:0] = [str(ROOT), str(ROOT / "test" / "tools")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bag", type=Path, help="a recording made with tt sim --record")
    bag = parser.parse_args().bag
    IMAGES.mkdir(exist_ok=True)
    draw_graph()
    draw_spin()
    draw_swing()
    draw_cameras()
    draw_gains()
    bag = bag or GOLDEN
    draw_recording(bag)
    with tempfile.TemporaryDirectory() as folder:
        draw_calibration(Path(folder))
        draw_viewer(bag, Path(folder))


def save(picture, name: str, dpi: int = 110) -> None:  # type: ignore[no-untyped-def]
    picture.savefig(IMAGES / name, dpi=dpi, metadata={"Software": None})
    print(f"wrote {name}", file=sys.stderr)


def draw_graph() -> None:
    """Nodes and the topics between them; names from the topic table."""
    from tt_bringup.report_figures import figure
    from tt_bringup.topics import topic

    places = {
        "camera_node": (0, 2), "triangulation_node": (1, 2), "ball_state_node": (2, 2), "hit_planner_node": (3, 2),
        "trajectory_node": (4, 2), "motor_node": (5, 2), "sim_node": (2.5, 0.7),
    }  # fmt: skip
    arrows = (
        ("camera_node", "triangulation_node", "{camera}/detections"),
        ("triangulation_node", "ball_state_node", "ball/position"),
        ("ball_state_node", "hit_planner_node", "ball/state"),
        ("hit_planner_node", "trajectory_node", "hit_plan"),
        ("trajectory_node", "motor_node", "joint_trajectory"),
    )
    picture = figure(11.5, 3.4)
    axes = picture.subplots()
    for name, (x, y) in places.items():
        colour = "#dfe9d8" if name == "sim_node" else "#dbe7f3"
        words = name.replace("_node", "").replace("_", "\n") + (
            "\n(one per camera)" if name == "camera_node" else ""
        )
        if name == "sim_node":
            words = "sim: world, cameras, motor boards — in place of the hardware"
        axes.text(x, y, words, ha="center", va="center", fontsize=9,
                  bbox={"boxstyle": "round,pad=0.5", "fc": colour, "ec": "#666"})  # fmt: skip
    for begin, end, name in arrows:
        topic(name)
        (x0, y0), (x1, _) = places[begin], places[end]
        axes.annotate("", (x1 - 0.28, y0), (x0 + 0.28, y0), arrowprops={"arrowstyle": "->", "color": "#444"})
        axes.text(
            (x0 + x1) / 2,
            y0 + 0.42,
            name.replace("{camera}", "<camera>"),
            ha="center",
            fontsize=8,
            color="#333",
        )
    axes.annotate("", (0, 1.62), (1.15, 0.78), arrowprops={"arrowstyle": "->", "color": "#6a6", "ls": "--"})
    axes.annotate("", (5, 1.62), (3.85, 0.78), arrowprops={"arrowstyle": "<->", "color": "#6a6", "ls": "--"})
    axes.text(0.25, 1.05, "detections\nor images", fontsize=8, color="#484", ha="center")
    axes.text(4.8, 1.05, "moteus registers over\na pseudo-terminal", fontsize=8, color="#484", ha="center")
    axes.set_xlim(-0.6, 5.6)
    axes.set_ylim(0.35, 2.75)
    axes.axis("off")
    save(picture, "graph.png")


def draw_spin() -> None:
    """Where the same ball bounces first with top- and backspin."""
    from tt_bringup.report_figures import figure, side_view
    from tt_estimation.ball_models import NOMINAL
    from tt_sim.ball import Ball

    picture = figure(8.0, 3.0)
    axes = picture.subplots()
    side_view(axes)
    for spin, colour in ((-100, "#2ca02c"), (0, "#444444"), (100, "#d62728")):
        ball = Ball(NOMINAL)
        # Spin about −x turns the upper side along the flight, which is topspin for a ball that flies to −y.
        ball.reset(np.array([0.0, 1.2, 0.25, 0.0, -6.0, 1.0, float(spin), 0.0, 0.0]))
        path = [ball.state[:3].copy()]
        while ball.state[1] > -2.0 and ball.state[2] > -0.3:
            ball.advance(0.004)
            path.append(ball.state[:3].copy())
        points = np.array(path)
        name = "no spin" if spin == 0 else f"{'topspin' if spin > 0 else 'backspin'} {abs(spin)} rad/s"
        axes.plot(points[:, 1], points[:, 2], color=colour, label=name)
    axes.legend(fontsize=8, frameon=False)
    axes.set_ylim(-0.2, 0.8)
    axes.set_ylabel("z, m", fontsize=7)
    save(picture, "spin.png")


def draw_swing() -> None:
    """The last trajectory of the golden rally: what every joint is commanded."""
    from tt_bringup.bags import open_bag
    from tt_bringup.rally import load_rally
    from tt_bringup.report_figures import figure
    from tt_planning.trajectory import sample

    rally = load_rally(open_bag(GOLDEN))
    trajectory, plan = rally.trajectories[-1][1], rally.plans[-1][1]
    times = np.linspace(trajectory.times_s[0], trajectory.times_s[-1], 600)
    rows = [sample(trajectory, trajectory.capture_stamp_ns + round(t * 1e9)) for t in times]
    hit = (plan.hit_stamp_ns - trajectory.capture_stamp_ns) * 1e-9
    picture = figure(9.0, 3.0)
    for axes, index, label in zip(picture.subplots(1, 2), (0, 1), ("m, rad", "m/s, rad/s"), strict=True):
        for column, name in enumerate(trajectory.joint_names):
            axes.plot(times, [row[index][column] for row in rows], label=name)
        axes.axvline(hit, color="0.5", lw=1, ls=":")
        axes.set_xlabel("s after the exposure (dotted: hit)")
        axes.set_ylabel(("position, " if index == 0 else "velocity, ") + label)
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    save(picture, "swing.png")


def draw_cameras() -> None:
    """What four cameras see of the golden rally in the middle of the flight."""
    import cv2

    from tt_bringup.bag_view import BagView
    from tt_bringup.bags import open_bag
    from tt_bringup.rally import load_rally
    from tt_bringup.viewer import preview_image, table_outline
    from tt_perception.camera import default_sim_cameras
    from tt_sim.render import CameraRenderer, MovingBall

    rally = load_rally(open_bag(GOLDEN))
    cameras = {camera.name: camera for camera in default_sim_cameras()}
    ball = rally.balls()[0]
    view = BagView(rally).at(0.5 * (ball.begin + ball.end))
    assert view.ball is not None
    flying = MovingBall(view.ball[0], np.zeros(3))
    view.pictures = {
        name: CameraRenderer(camera).render(0.0, [flying]).copy() for name, camera in cameras.items()
    }
    outlines = {name: table_outline(camera) for name, camera in cameras.items()}
    image = preview_image(cameras, outlines, view)
    cv2.imwrite(str(IMAGES / "cameras.png"), image[:, :, ::-1])
    print("wrote cameras.png", file=sys.stderr)


def draw_gains() -> None:
    """Answer of one joint to a step for three damping ratios, and for a loop that is too stiff for its delay."""
    from tt_bringup.report_figures import figure
    from tt_control.gains import design, step_response

    picture = figure(9.0, 3.0)
    axes = picture.subplots()
    inertia = 1.0
    cases = (
        (40.0, 0.3, 0.001, "ζ = 0.3: too little kd", "#d62728"),
        (40.0, 0.7, 0.001, "ζ = 0.7: right", "#2ca02c"),
        (40.0, 1.5, 0.001, "ζ = 1.5: too much kd, slow", "#1f77b4"),
        (75.0, 0.7, 0.008, "ω_n nearly doubled, 8 ms of delay: near oscillation", "#9467bd"),
    )
    for natural, damping, delay_s, words, colour in cases:
        times, pos, _ = step_response(design(natural, damping, inertia), inertia, 0.0, 0.35, delay_s)
        axes.plot(times, pos, label=words, color=colour)
    axes.axhline(1.0, color="0.6", lw=1, ls=":")
    axes.set_xlabel("s after the step")
    axes.set_ylabel("position / step")
    axes.set_ylim(0.0, 1.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    save(picture, "gains.png")


def draw_calibration(folder: Path) -> None:
    """The pictures in the reports of `tt calibrate` on simulated views: coverage, residuals, table lines, poses."""
    from tt_perception.calibration.report import overlay_picture, poses_picture
    from tt_perception.camera import default_sim_cameras
    from tt_sim.render import CameraRenderer

    cameras = default_sim_cameras()
    images = [
        overlay_picture(CameraRenderer(camera).render(0.0, []).copy(), camera) for camera in cameras[:2]
    ]
    write_row("calibration_table.png", images, 400)
    write_row("calibration_poses.png", [poses_picture(cameras)], 400)
    report = folder / "intrinsics.html"
    words = (
        "calibrate",
        "intrinsics",
        "--simulate",
        "25",
        "--out",
        str(folder / "cam0.yaml"),
        "--report",
        str(report),
    )
    subprocess.run(
        [sys.executable, "-m", "tt_bringup.cli", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    write_row("calibration_lens.png", embedded_pictures(report.read_text())[:2], 380)


def embedded_pictures(page: str) -> list[np.ndarray]:
    """The pictures inside an HTML page, in its order."""
    import cv2

    codes = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", page)
    return [cv2.imdecode(np.frombuffer(base64.b64decode(code), np.uint8), cv2.IMREAD_COLOR) for code in codes]


def write_row(name: str, images: list[np.ndarray], height: int) -> None:
    """Pictures of any size side by side."""
    import cv2

    parts = []
    for image in images:
        size = (round(image.shape[1] * height / image.shape[0]), height)
        parts += [
            cv2.resize(image, size, interpolation=cv2.INTER_AREA),
            np.full((height, 8, 3), 255, np.uint8),
        ]
    cv2.imwrite(str(IMAGES / name), np.hstack(parts[:-1]))
    print(f"wrote {name}", file=sys.stderr)


def draw_recording(bag: Path) -> None:
    """Strip and errors of a recording; latency budget of a live one."""
    from tt_bringup.bags import open_bag
    from tt_bringup.rally import load_rally
    from tt_bringup.report_figures import error_over_time, strip

    rally = load_rally(open_bag(bag))
    balls = rally.balls()
    best = next((ball for ball in balls if ball.outcome == "returned"), balls[0])
    save(strip(rally, best), "strip.png", 75)
    errors = error_over_time(rally, balls)
    if errors is not None:
        save(errors, "error.png", 90)
    if len(rally.latency):
        from tt_bringup.latency_report import draw_budget

        save(draw_budget(rally.latency), "latency.png", 90)
    else:
        print("latency.png is kept: give a live recording with --bag", file=sys.stderr)


def draw_viewer(bag: Path, folder: Path) -> None:
    """The browser viewer in the middle of a ball."""
    import json
    import time

    from cdp import Browser, chromium

    from tt_bringup.bags import open_bag
    from tt_bringup.rally import load_rally

    if chromium() is None:
        print("viewer.png is kept: Chromium is not installed", file=sys.stderr)
        return
    ball = load_rally(open_bag(bag)).balls()[0]
    at = ball.begin + 0.4 * (ball.end - ball.begin)
    words = ["-m", "tt_bringup.cli", "view", str(bag), "--port", "0", "--json", "--at", f"{at:.2f}"]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with Browser(folder) as browser:
            browser.open(url)
            browser.wait_for_text("recording")
            time.sleep(5.0)
            browser.evaluate("document.querySelector('.mantine-Notification-closeButton')?.click()")
            time.sleep(1.0)
            browser.screenshot(IMAGES / "viewer.png")
        print("wrote viewer.png", file=sys.stderr)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
