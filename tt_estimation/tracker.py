"""From a stream of observations to the state of the incoming ball: tracks, gating, restarts, and what happened.

Observations go to the track that explains them; those that none explains feed a short memory from which three points
that fly like a ball start a new track. A racket hit therefore shows as a new track that begins where an old one stops
explaining the ball. The tracker never sleeps and has no clock: time comes in with the calls.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from tt_estimation import ekf
from tt_estimation.ball_models import BallModel
from tt_estimation.buffer import observation_row
from tt_estimation.prediction import Predictor, PredictorConfig
from tt_estimation.spin_prior import BROAD, SpinPrior
from tt_estimation.start import find_start
from tt_estimation.track import FilterConfig, Track
from tt_estimation.types import BallPrediction, BallState
from tt_perception.table import NET_HEIGHT_M, TABLE_HEIGHT_M
from tt_perception.types import BallPosition, BallRay

FloatArray = NDArray[np.float64]

ROOM_HALF_WIDTH_M = 5.0
ROOM_HALF_LENGTH_M = 7.0
ROOM_HEIGHT_M = 5.0
_MAX_START_SIGMA_M = 0.1
_STILL_AFTER_NS = 80_000_000  # a ball fast enough to start a track has left its place after this time
_MOST_UNEXPLAINED = 120
_MOST_RECENT = 64  # observations that are looked through for a repetition
_MOST_LOOSE = 24  # points that no track explains, kept to start one: six images of four candidates


def chi2_quantile(share: float, degrees: int) -> float:
    """What a chi-squared variable of 2 or 3 degrees of freedom stays below with this probability.

    From the closed forms of its distribution, because importing scipy.special takes each node 0.1 s.
    """
    if degrees == 2:
        return -2.0 * math.log(1.0 - share)
    low, high = 0.0, 100.0
    while high - low > 1e-12 * high:
        x = 0.5 * (low + high)
        below = math.erf(math.sqrt(0.5 * x)) - math.sqrt(2.0 * x / math.pi) * math.exp(-0.5 * x)
        low, high = (x, high) if below < share else (low, x)
    return high


_START_COST = chi2_quantile(0.9999, 3)


class TrackEvent(Enum):
    """What happened to the ball or to the track."""

    START = "track started"
    OPPONENT_HIT = "opponent hit"
    ROBOT_HIT = "robot hit"
    TABLE_BOUNCE = "table bounce"
    NET_TOUCH = "net touch"
    NOT_PLAYABLE = "second bounce on the robot half"
    ROLLING = "ball rolls"
    DEAD = "ball does not move"
    LOST = "not seen any more"
    DIVERGED = "estimate became unusable"
    RESET = "stamps jumped back"


class Refusal(Enum):
    """Why an observation was not used."""

    NOT_FINITE = "not finite"
    COVARIANCE = "covariance not positive definite"
    NO_STAMP = "stamp is zero or negative"
    FUTURE = "stamp in the future"
    TOO_LATE = "older than the buffer"
    OUTSIDE = "outside the room"
    DUPLICATE = "same stamp and place twice"
    AMBIGUOUS = "views cannot tell the point from another"
    GATE = "explained by no track"


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event with the stamp it is recognised at.

    Attributes:
        stamp_ns: stamp of the observation that revealed it.
        event: what happened.
        pos_table: where, shape (3,), m.
        track: number of the track.
    """

    stamp_ns: int
    event: TrackEvent
    pos_table: FloatArray
    track: int


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """Limits of the tracker.

    Attributes:
        filter: the filter's settings.
        predictor: how far to predict.
        max_future_s: stamps may be this far ahead of now (clocks of two hosts).
        late_s: observations older than this against the newest one are refused.
        reset_s: a stamp this far behind the newest one means that time restarted.
        lost_s: a track ends when it has not been seen for this long; 100 ms of occlusion must be survived.
        max_tracks: balls followed at once.
        min_start_speed: slower things do not start a track, m/s.
        max_speed: faster things are not balls, m/s.
    """

    filter: FilterConfig = field(default_factory=FilterConfig)
    predictor: PredictorConfig = field(default_factory=PredictorConfig)
    max_future_s: float = 0.05
    late_s: float = 0.25
    reset_s: float = 1.0
    lost_s: float = 0.2
    max_tracks: int = 4
    min_start_speed: float = 1.0
    max_speed: float = 40.0


class _Followed:
    """A track with what the tracker remembers about it."""

    def __init__(self, number: int, track: Track) -> None:
        self.number = number
        self.track = track
        self.robot_bounces = 0
        self.bounces_seen = 0
        self.playable = True
        self.refused_since: int | None = None
        self.slow_images = 0
        self.nis_sum = 0.0
        self.nis_rows = 0


class BallTracker:
    """Follows the balls in view and tells the state of the incoming one."""

    def __init__(
        self,
        model: BallModel,
        config: TrackerConfig | None = None,
        on_end: Callable[[Track], None] | None = None,
    ) -> None:
        """Make a tracker; `on_end` is given every track that ends."""
        self.model = model
        self._on_end = on_end
        self.config = config or TrackerConfig()
        self._predictor = Predictor(model, self.config.predictor)
        gate = self.config.filter.gate
        self._gate2, self._gate3 = chi2_quantile(gate, 2), chi2_quantile(gate, 3)
        self._counts: dict[str, int] = {}
        self._events: list[EventRecord] = []
        self._next_number = 1
        self._clear()

    def _clear(self) -> None:
        self._followed: list[_Followed] = []
        self._main: _Followed | None = None
        self._loose: list[BallPosition] = []
        self._unexplained: deque[tuple[int, FloatArray]] = deque(maxlen=_MOST_UNEXPLAINED)
        self._newest_ns: int | None = None
        self._recent: dict[tuple[int, bytes], None] = {}  # in order of arrival

    # ---- input -----------------------------------------------------------------------------------------------

    def add(self, obs: BallPosition | BallRay, now_ns: int | None = None) -> BallState | None:
        """Fuse one observation.

        Args:
            obs: position or ray; late and out-of-order stamps are welcome within `late_s`.
            now_ns: current time for the check of future stamps; None skips it (replay).

        Returns:
            The state of the incoming ball at its newest capture stamp when this observation changed it, else None.
        """
        refusal = self._check(obs, now_ns)
        if refusal is not None:
            self._count(refusal.value)
            return None
        stamp = obs.stamp_ns
        if self._newest_ns is not None and stamp < self._newest_ns - int(self.config.reset_s * 1e9):
            self._event(stamp, TrackEvent.RESET, np.full(3, np.nan), 0)
            self._clear()
        if self._newest_ns is not None and stamp < self._newest_ns - int(self.config.late_s * 1e9):
            self._count(Refusal.TOO_LATE.value)
            return None
        z = np.asarray(obs.pos_table if isinstance(obs, BallPosition) else obs.uv_px, float)
        key = (stamp, z.tobytes())
        if key in self._recent:
            self._count(Refusal.DUPLICATE.value)
            return None
        self._recent[key] = None
        if len(self._recent) > _MOST_RECENT:
            del self._recent[next(iter(self._recent))]
        if self._newest_ns is not None and stamp < self._newest_ns:
            self._count("late")
        self._newest_ns = max(stamp, self._newest_ns or stamp)
        self.expire(self._newest_ns)

        row = observation_row(obs, 0.0)
        owner = self._assign(stamp, row)
        if owner is not None:
            row[0] = (stamp - owner.track.origin_ns) * 1e-9
            if not owner.track.fuse(row):
                self._end(owner, TrackEvent.DIVERGED)
                return None
            owner.refused_since = None
            self._count("fused")
            self._after_fusion(owner)
        else:
            self._count(Refusal.GATE.value if self._followed else "unassigned")
            # A view of one camera travels as a position uncertain along its ray: it can hold a track, not start one.
            if isinstance(obs, BallPosition) and np.trace(obs.cov) < _MAX_START_SIGMA_M**2:
                owner = self._try_start(obs)
        self._choose_main()
        if owner is None or owner is not self._main:
            return None
        return self.state()

    def expire(self, now_ns: int) -> None:
        """End tracks that have not been seen for `lost_s` before `now_ns`; call it in times of silence."""
        limit = now_ns - int(self.config.lost_s * 1e9)
        for f in list(self._followed):
            if f.track.stamp_ns < limit:
                self._end(f, TrackEvent.LOST)
        self._loose = [o for o in self._loose if o.stamp_ns >= now_ns - 100_000_000]
        while self._unexplained and self._unexplained[0][0] < now_ns - 1_000_000_000:
            self._unexplained.popleft()

    def finish(self) -> None:
        """End all tracks: the recording is over."""
        for f in list(self._followed):
            self._end(f, None)

    # ---- output ----------------------------------------------------------------------------------------------

    def state(self) -> BallState | None:
        """State of the incoming ball at its newest observation; None when there is none."""
        if self._main is None:
            return None
        track = self._main.track
        return ball_state(track.stamp_ns, track.x, track.cov)

    def full_covariance(self) -> FloatArray | None:
        """Covariance of `state` before its position-spin block was completed for the wire, shape (9, 9)."""
        return None if self._main is None else self._main.track.cov.copy()

    def hit_state(self) -> tuple[int, FloatArray] | None:
        """(stamp, state (9,)) of the incoming ball where its track begins, smoothed over all observations since."""
        if self._main is None:
            return None
        track = self._main.track
        return track.origin_ns, track.origin_state.copy()

    def predict(self) -> BallPrediction | None:
        """Predicted path of the incoming ball; None when there is none."""
        if self._main is None:
            return None
        track = self._main.track
        state = BallState(track.stamp_ns, track.x[:3], track.x[3:6], track.x[6:], track.cov)
        return self._predictor.predict(state, self._main.robot_bounces)

    def nis(self) -> tuple[float, int]:
        """Sum of the normalised innovations squared of the incoming ball's track, and its degrees of freedom.

        Honest covariances make their ratio 1 on average. The three observations that start a track do not count.
        """
        return (0.0, 0) if self._main is None else (self._main.nis_sum, self._main.nis_rows)

    @property
    def robot_bounces(self) -> int:
        """Bounces of the incoming ball on the robot half so far."""
        return 0 if self._main is None else self._main.robot_bounces

    @property
    def playable(self) -> tuple[bool, str]:
        """Whether the followed ball can still be returned, and why not."""
        if self._main is None:
            return False, "no ball"
        if not self._main.playable:
            return False, TrackEvent.NOT_PLAYABLE.value
        if self._main.track.x[4] >= 0.0:
            return False, "moves away from the robot"
        return True, ""

    def events(self) -> list[EventRecord]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events

    def health(self) -> dict[str, float]:
        """Counters since the start, number of tracks, and the stamp of the newest observation."""
        return {
            **self._counts,
            "tracks": len(self._followed),
            "newest_stamp_s": (self._newest_ns or 0) * 1e-9,
        }

    # ---- inside ----------------------------------------------------------------------------------------------

    def _check(self, obs: BallPosition | BallRay, now_ns: int | None) -> Refusal | None:
        size = 3 if isinstance(obs, BallPosition) else 2
        z = np.asarray(obs.pos_table if isinstance(obs, BallPosition) else obs.uv_px, float)
        cov = np.asarray(obs.cov if isinstance(obs, BallPosition) else obs.cov_px, float)
        if obs.stamp_ns <= 0:
            return Refusal.NO_STAMP
        if z.shape != (size,) or not np.isfinite(z).all():
            return Refusal.NOT_FINITE
        if isinstance(obs, BallRay) and not np.isfinite(obs.projection).all():
            return Refusal.NOT_FINITE
        if cov.shape != (size, size) or not ekf.is_covariance(cov):
            return Refusal.COVARIANCE
        if now_ns is not None and obs.stamp_ns > now_ns + int(self.config.max_future_s * 1e9):
            return Refusal.FUTURE
        if isinstance(obs, BallPosition):
            inside = (
                abs(z[0]) <= ROOM_HALF_WIDTH_M
                and abs(z[1]) <= ROOM_HALF_LENGTH_M
                and -TABLE_HEIGHT_M - 0.1 <= z[2] <= ROOM_HEIGHT_M
            )
            if not inside:
                return Refusal.OUTSIDE
            if obs.ambiguous:
                return Refusal.AMBIGUOUS
        return None

    def _assign(self, stamp_ns: int, row: FloatArray) -> _Followed | None:
        best, best_d2, best_rows = None, np.inf, 0
        for f in self._followed:
            row[0] = (stamp_ns - f.track.origin_ns) * 1e-9
            if row[0] < 0.0:
                continue
            rows, d2 = f.track.distance2(row)
            if rows == 0 or d2 > (self._gate2 if rows == 2 else self._gate3):
                continue
            if d2 < best_d2:
                best, best_d2, best_rows = f, d2, rows
        if best is not None:
            best.nis_sum += best_d2
            best.nis_rows += best_rows
        return best

    def _try_start(self, obs: BallPosition) -> _Followed | None:
        self._loose.append(obs)
        self._unexplained.append((obs.stamp_ns, obs.pos_table))
        self._loose.sort(key=lambda o: o.stamp_ns)
        del self._loose[:-_MOST_LOOSE]
        newest = next((i for i, o in enumerate(self._loose) if o is obs), None)
        if newest is None:
            return None  # older than all that are remembered
        found = find_start(
            np.array([o.stamp_ns for o in self._loose], dtype=np.int64),
            np.array([o.pos_table for o in self._loose]),
            np.array([np.sqrt(np.trace(o.cov) / 3.0) for o in self._loose]),
            newest,
            self.config.min_start_speed,
            self.config.max_speed,
        )
        if found is None:
            return None
        chosen = [self._loose[i] for i in found]
        if self._stands_still(chosen):
            self._count("stands still")
            return None
        origin = chosen[0].stamp_ns
        rows = np.array([observation_row(o, (o.stamp_ns - origin) * 1e-9) for o in chosen])
        velocity = (chosen[-1].pos_table - chosen[0].pos_table) / rows[-1, 0]
        track = Track(
            rows, origin, self.model, self.config.filter, self._prior(chosen[0].pos_table, velocity)
        )
        # Three points have 9 coordinates for 6 unknowns; the prior of spin hardly matters in two images.
        if not track.valid or 2.0 * track.cost > _START_COST:
            return None
        used = set(found)
        stamps = {o.stamp_ns for o in chosen}
        explained = [u for u in self._unexplained if u[0] not in stamps]
        self._unexplained = deque(explained, maxlen=_MOST_UNEXPLAINED)
        self._loose = [o for i, o in enumerate(self._loose) if i not in used]
        followed = _Followed(self._next_number, track)
        self._next_number += 1
        self._classify_start(followed)
        self._followed.append(followed)
        while len(self._followed) > self.config.max_tracks:
            oldest = min((f for f in self._followed if f is not followed), key=lambda f: f.track.stamp_ns)
            self._end(oldest, TrackEvent.LOST)
        return followed

    def _stands_still(self, chosen: Sequence[BallPosition]) -> bool:
        """Whether something unexplained was at these places before already: a reflection, not a ball."""
        earlier = chosen[0].stamp_ns - _STILL_AFTER_NS
        old = np.array([p for stamp, p in self._unexplained if stamp <= earlier])
        if len(old) == 0:
            return False
        return all(
            np.linalg.norm(old - o.pos_table, axis=1).min() < 0.01 + 3.0 * np.sqrt(np.trace(o.cov))
            for o in chosen
        )

    def _prior(self, pos: FloatArray, vel: FloatArray) -> SpinPrior:
        # The fitted prior speaks of balls hit by the opponent, near or behind the far end of the table.
        return self.config.filter.spin_prior if vel[1] < 0.0 and pos[1] > 0.4 else BROAD

    def _classify_start(self, new: _Followed) -> None:
        """Tell what started the track, and end the track that it continues."""
        x = new.track.x
        stamp = new.track.stamp_ns
        origin_pos = new.track.origin_state[:3]
        self._event(stamp, TrackEvent.START, x[:3], new.number)
        for old in list(self._followed):
            gap = (new.track.origin_ns - old.track.stamp_ns) * 1e-9
            if gap < -0.02 or gap > self.config.lost_s:
                continue
            at, _, _ = old.track.predicted(max(old.track.time_s, old.track.time_s + gap))
            if np.linalg.norm(at[:3] - origin_pos) > 0.05 + 12.0 * max(gap, 0.0):
                continue
            vy_old, vy = at[4], x[4]
            near_net = abs(origin_pos[1]) < 0.15 and origin_pos[2] < NET_HEIGHT_M + 0.08
            if near_net and abs(vy) < abs(vy_old):
                self._event(stamp, TrackEvent.NET_TOUCH, x[:3], new.number)
                new.robot_bounces = old.robot_bounces
            elif vy_old >= 0.0 and vy < 0.0:
                self._event(stamp, TrackEvent.OPPONENT_HIT, x[:3], new.number)
            elif vy_old < 0.0 and vy > 0.0:
                self._event(stamp, TrackEvent.ROBOT_HIT, x[:3], new.number)
            else:
                new.robot_bounces = old.robot_bounces
                new.playable = old.playable
            self._end(old, None)
            return
        if x[4] < 0.0 and origin_pos[1] > 0.4:
            self._event(stamp, TrackEvent.OPPONENT_HIT, x[:3], new.number)

    def _after_fusion(self, f: _Followed) -> None:
        track = f.track
        stamp = track.stamp_ns
        while f.bounces_seen < track.bounces:
            f.bounces_seen += 1
            self._event(stamp, TrackEvent.TABLE_BOUNCE, track.x[:3], f.number)
            if track.x[1] < 0.0:
                f.robot_bounces += 1
                if f.robot_bounces == 2:
                    f.playable = False
                    self._event(stamp, TrackEvent.NOT_PLAYABLE, track.x[:3], f.number)
        _, _, z, vx, vy, vz, *_ = track.x.tolist()
        speed = math.sqrt(vx * vx + vy * vy + vz * vz)
        on_table = z < 0.03 and abs(vz) < 0.1
        f.slow_images = f.slow_images + 1 if speed < 0.3 or on_table or track.rolling else 0
        if f.slow_images >= 5:
            self._end(f, TrackEvent.DEAD if speed < 0.3 else TrackEvent.ROLLING)
        elif z < -TABLE_HEIGHT_M - 0.1:
            self._end(f, TrackEvent.DEAD)

    def _choose_main(self) -> None:
        if not self._followed:
            self._main = None
            return

        def rank(f: _Followed) -> tuple[bool, bool, bool, int]:
            incoming = f.track.x[4] < 0.0 and f.track.x[1] > -2.5
            return (incoming and f.playable, incoming, f is self._main, f.number)

        self._main = max(self._followed, key=rank)

    def _end(self, f: _Followed, event: TrackEvent | None) -> None:
        if event is not None:
            self._event(f.track.stamp_ns, event, f.track.x[:3], f.number)
        if f in self._followed:
            self._followed.remove(f)
            if self._on_end is not None:
                self._on_end(f.track)
        if f is self._main:
            self._main = None

    def _event(self, stamp_ns: int, event: TrackEvent, pos: FloatArray, number: int) -> None:
        self._count(event.value)
        self._events.append(EventRecord(stamp_ns, event, np.array(pos), number))
        del self._events[:-1000]

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1


def ball_state(stamp_ns: int, x: FloatArray, cov: FloatArray) -> BallState:
    """A state as it goes on the wire: the position-spin covariance completed as `BallState` says."""
    cov = cov.copy()
    ekf.complete_position_spin(cov)
    return BallState(stamp_ns, x[:3].copy(), x[3:6].copy(), x[6:].copy(), cov)
