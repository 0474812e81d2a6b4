"""The hit planner: returns balls in a closed loop, mirrors, refuses what cannot be played, says why."""

from dataclasses import replace

import numpy as np
import pytest

from test.planning.closed_loop import TruthTracker, play
from tt_estimation.ball_models import DEEPMIND
from tt_estimation.prediction import Predictor
from tt_estimation.types import BallEnd, BallState
from tt_planning.decision import HitDecider, Skipped
from tt_planning.planner import HitPlanner, PlanReason
from tt_planning.planners import is_return, make_planner
from tt_planning.ready_pose import choose_ready, score_ready
from tt_planning.robot import load_robot
from tt_planning.trajectory import JointSample, TrajectoryGenerator, TrajectoryReason
from tt_planning.types import HitKind

ROBOT = load_robot("gantry4")
PLANNER = HitPlanner(ROBOT, DEEPMIND)
PREDICTOR = Predictor(DEEPMIND)
COV = np.diag([1e-5] * 3 + [1e-3] * 3 + [25.0] * 3)
BALL = np.array([0.1, 1.3, 0.35, 0.1, -4.8, 1.3, 40.0, 5.0, 0.0])
ZERO = np.zeros(4)
START = JointSample(8_000_000, ROBOT.ready, ZERO, ZERO)


def state_of(ball, cov=COV):
    """A ball state at stamp 0."""
    ball = np.asarray(ball, float)
    return BallState(0, ball[:3], ball[3:6], ball[6:], cov)


def decide(ball, cov=COV, planner=PLANNER):
    """One decision from scratch."""
    planner.reset()
    state = state_of(ball, cov)
    return planner.plan(state, PREDICTOR.predict(state, 0), START)


@pytest.mark.parametrize("side", [-0.5, 0.0, 0.4])
@pytest.mark.parametrize("spin", [-60.0, 0.0, 80.0])
def test_returns_ordinary_balls_onto_the_aim(side, spin):
    """Lateral places and spins; true states 30 ms late, joints that follow exactly."""
    ball = BALL.copy()
    ball[3], ball[5], ball[6] = side, 1.0 + 0.004 * spin, spin
    result = play(ball, ROBOT, DEEPMIND, PLANNER, TrajectoryGenerator(ROBOT), TruthTracker(DEEPMIND))
    assert result.outcome == "returned", result.reasons
    assert np.hypot(result.landing[0], result.landing[1] - 0.75) < 0.15
    assert np.abs(result.offset).max() < 0.06


def test_mirrored_ball_gets_the_mirrored_plan():
    """The robot has no favourite side."""
    mirror = np.array([-1.0, 1.0, 1.0])
    ball = BALL.copy()
    ball[3] = 0.3
    mirrored = np.concatenate([ball[:3] * mirror, ball[3:6] * mirror, -ball[6:] * mirror])
    a, b = decide(ball), decide(mirrored)
    assert a.plan is not None and b.plan is not None
    assert abs(a.plan.hit_stamp_ns - b.plan.hit_stamp_ns) < 3_000_000
    np.testing.assert_allclose(b.plan.racket_pos_table, a.plan.racket_pos_table * mirror, atol=0.02)


def changed(index, value):
    """The ordinary ball with one number replaced."""
    ball = BALL.copy()
    ball[index] = value
    return ball


@pytest.mark.parametrize(
    ("ball", "cov", "reason"),
    [
        (changed(4, np.nan), COV, PlanReason.NOT_FINITE),
        (BALL, np.full((9, 9), np.inf), PlanReason.NOT_FINITE),
        (BALL, COV * 1e6, PlanReason.UNCERTAIN),
        (changed(4, 4.0), COV, PlanReason.OUTGOING),
        (np.array([0.0, 0.5, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), COV, PlanReason.AT_REST),
        (np.array([0.0, -2.4, 0.3, 0.0, -3.0, 0.0, 0.0, 0.0, 0.0]), COV, PlanReason.PAST),
        (np.array([0.0, 0.5, -0.3, 0.0, -3.0, 0.0, 0.0, 0.0, 0.0]), COV, PlanReason.BELOW_TABLE),
        (np.array([0.7, 1.3, 0.35, 0.0, -20.0, 1.3, 0.0, 0.0, 0.0]), COV, PlanReason.NO_BOUNCE),
    ],
    ids=["nan", "infinite covariance", "uncertain", "outgoing", "at rest", "past", "below", "too long"],
)
def test_balls_that_are_none_of_the_rackets_business(ball, cov, reason):
    """A reason, never an exception, never a motion."""
    result = decide(ball, cov)
    assert result.plan is None
    assert result.reason is reason


def test_a_ball_out_of_reach_has_a_reason():
    """Two metres to the side."""
    result = decide(changed(3, 3.2))
    assert result.plan is None or not is_return(result)


def test_racket_leaves_the_path_of_a_ball_that_flies_out():
    """Touching it would lose the point; one evasion per ball, and none for a ball that passes far away."""
    flying_out = np.array([0.0, 0.3, 0.5, 0.0, -9.0, -0.2, 0.0, 0.0, 0.0])
    sure = np.diag([1e-6] * 3 + [1e-4] * 3 + [1.0] * 3)
    result = decide(flying_out, sure)
    assert result.plan is not None
    assert result.plan.kind is HitKind.EVADE
    assert abs(result.plan.racket_pos_table[0]) > 0.15
    np.testing.assert_allclose(result.plan.racket_vel_table, 0.0)
    made = TrajectoryGenerator(ROBOT)
    made.set_reference(ROBOT.ready, ZERO, ZERO, 0)
    assert made.hit(result.plan, 0).reason is TrajectoryReason.OK
    state = state_of(flying_out, sure)
    again = PLANNER.plan(state, PREDICTOR.predict(state, 0), START)
    assert again.plan is None
    aside = flying_out.copy()
    aside[0] = 0.7
    assert decide(aside, sure).plan is None


def test_ready_pose_is_chosen_from_the_balls():
    """From a corner the search moves towards where the balls come; balls that nobody returns change nothing."""
    corner = np.array([0.95, 0.55, 0.0, 0.3])
    balls = np.array([changed(3, side) for side in (-0.2, 0.0, 0.1, 0.25)])
    aside = replace(ROBOT, ready=corner, home=corner)
    before = score_ready(ROBOT, DEEPMIND, balls, corner)
    chosen = choose_ready(aside, DEEPMIND, balls)
    assert chosen.cost < before.cost - 0.02
    assert chosen.load < before.load
    assert chosen.ready[0] < corner[0]
    assert (chosen.ready >= ROBOT.lower).all() and (chosen.ready <= ROBOT.upper).all()
    lost = score_ready(ROBOT, DEEPMIND, np.array([changed(4, -20.0)]), ROBOT.ready)
    assert (lost.returned, lost.cost) == (0.0, 1.0)


@pytest.mark.parametrize("name", ["nominal", "plane"])
def test_baselines_hit_an_ordinary_ball(name):
    """They are there to be compared with, so they must work on easy balls."""
    planner = make_planner(name, ROBOT, DEEPMIND)
    tracker = TruthTracker(DEEPMIND)
    result = play(BALL, ROBOT, DEEPMIND, planner, TrajectoryGenerator(ROBOT), tracker)
    assert result.outcome in ("returned", "out", "net"), result.reasons


def test_model_of_the_planner_matters():
    """A planner with wrong constants lands elsewhere: the reason why constants are identified."""
    misses = []
    for model in (DEEPMIND, DEEPMIND.with_values(racket_restitution=0.7)):
        planner = HitPlanner(ROBOT, model)
        found = []
        for side in (-0.3, 0.1, 0.4):
            ball = changed(3, side)
            tracker = TruthTracker(DEEPMIND)
            result = play(ball, ROBOT, DEEPMIND, planner, TrajectoryGenerator(ROBOT), tracker)
            found.append(np.hypot(result.landing[0], result.landing[1] - 0.75))
        misses.append(np.mean(found))
    assert misses[0] < 0.05
    assert not misses[1] < 4.0 * misses[0]


def test_racket_prepares_for_a_ball_whose_path_is_still_uncertain():
    """Waiting for certainty costs the time in which a fast ball could have been reached."""
    unsure = np.diag([1e-5] * 3 + [0.05] * 3 + [2500.0] * 3)
    decider = HitDecider(HitPlanner(ROBOT, DEEPMIND), Predictor(DEEPMIND), DEEPMIND)
    into_net = np.array([0.0, 0.9, 0.3, 1.2, -11.0, -1.2, 140.0, 0.0, 0.0])
    assert PREDICTOR.predict(state_of(into_net, unsure), 0).end is BallEnd.NET
    result = decider.decide(state_of(into_net, unsure), START, 0)
    assert not isinstance(result, Skipped)
    assert result.plan is not None
    sure = np.diag([1e-8] * 3 + [1e-6] * 3 + [0.1] * 3)
    decider.planner.reset()
    result = decider.decide(replace(state_of(into_net, sure), stamp_ns=400_000_000), START, 0)
    assert result.plan is None
    assert result.reason is PlanReason.NET


def test_racket_moves_towards_a_ball_that_no_hit_reaches_yet():
    """The joints are too slow for every hit: they start all the same, with the reason kept, within their limits."""
    far = np.array([0.2, 1.2, 0.4, 2.1, -10.5, 0.4, 60.0, 0.0, 0.0])
    result = decide(far)
    assert result.reason is not PlanReason.OK
    assert result.plan is not None
    assert result.plan.kind is HitKind.PREPARE
    assert result.plan.racket_pos_table[0] > 0.2
    np.testing.assert_allclose(result.plan.racket_vel_table, 0.0, atol=1e-12)
    made = TrajectoryGenerator(ROBOT)
    made.set_reference(ROBOT.ready, ZERO, ZERO, 0)
    assert made.hit(result.plan, 0).reason is TrajectoryReason.OK


def decider():
    """A decision maker as node and pipeline have it."""
    return HitDecider(HitPlanner(ROBOT, DEEPMIND), Predictor(DEEPMIND), DEEPMIND)


def at(ball, t_s, cov=COV):
    """The ball's state at a time, with the start of motion a millisecond later."""
    stamp = round(t_s * 1e9)
    return replace(state_of(ball, cov), stamp_ns=stamp), JointSample(
        stamp + 1_000_000, ROBOT.ready, ZERO, ZERO
    )


def test_serve_is_returned_after_its_two_bounces():
    """It bounces on the opponent's half first, which is no bounce to hit after."""
    serve = np.array([0.1, 1.45, 0.3, 0.0, -4.5, -1.5, 20.0, 0.0, 0.0])
    state, start = at(serve, 0.0)
    result = decider().decide(state, start, 0)
    assert not isinstance(result, Skipped)
    assert is_return(result)
    path = PREDICTOR.predict(state, 0)
    assert path.bounce_pos_table[1] < 0.0
    assert result.plan.hit_stamp_ns > path.bounce_time_s * 1e9
    played = play(serve, ROBOT, DEEPMIND, PLANNER, TrajectoryGenerator(ROBOT), TruthTracker(DEEPMIND))
    assert played.outcome == "returned", played.reasons


@pytest.mark.parametrize("slower", [0.7, 0.85], ids=["slowed", "brushed"])
def test_after_a_net_touch_the_ball_is_planned_for_again(slower):
    """The ball loses speed on the net cord; the next states bring a new hit time."""
    choice = decider()
    before = np.array([0.1, 0.1, 0.22, 0.0, -4.5, -0.2, 20.0, 0.0, 0.0])
    state, start = at(before, 0.0)
    first = choice.decide(state, start, start.stamp_ns)
    assert not isinstance(first, Skipped) and first.plan is not None
    after = np.array([0.1, -0.02, 0.24, 0.05, -4.5 * slower, 0.6, 5.0, 0.0, 0.0])
    state, start = at(after, 0.03)
    second = choice.decide(state, start, start.stamp_ns)
    assert not isinstance(second, Skipped) and second.plan is not None
    assert second.plan.hit_stamp_ns > first.plan.hit_stamp_ns + 20_000_000


def test_edge_ball_is_planned_for_again():
    """The edge of the table throws the ball sideways and up: what was planned before is void, the next state counts."""
    choice = decider()
    before = np.array([0.1, -1.2, 0.06, 0.0, -4.0, -1.2, 20.0, 0.0, 0.0])
    state, start = at(before, 0.0)
    choice.decide(state, start, start.stamp_ns)
    after = np.array([0.12, -1.38, 0.05, 0.3, -1.5, 2.0, 5.0, 0.0, 0.0])
    state, start = at(after, 0.04)
    result = choice.decide(state, start, start.stamp_ns)
    assert not isinstance(result, Skipped)
    assert result.plan is not None
    assert result.plan.racket_pos_table[2] > 0.1


def test_second_bounce_is_never_hit_after():
    """A short ball that comes down twice before the racket can reach it: no hit, at most a step towards it."""
    short = np.array([0.1, -0.1, 0.35, 0.0, -1.2, 0.3, 0.0, 0.0, 0.0])
    assert PREDICTOR.predict(state_of(short), 0).end is BallEnd.SECOND_BOUNCE
    result = decide(short)
    assert result.reason is PlanReason.SECOND_BOUNCE
    assert result.plan is None or result.plan.kind is HitKind.PREPARE
