"""Compiled search for the ball in several views: largest consistent subset, refinement, covariance.

All pixels here are undistorted. A hypothesis is the midpoint of two rays (one candidate in each of two
views); every other view votes with its candidate nearest to the hypothesis, if it lies within the gate. The
hypothesis with most votes wins; Gauss-Newton then minimises the reprojection error over its voters, and
votes are counted again at the refined point until they no longer change.

Source of the idea of the largest consistent subset: S. Gomez-Gonzalez et al., Reliable Real-Time Ball
Tracking for Robot Table Tennis, 2019, algorithm 2; here over several candidates per view, in metric space,
with the covariance of the result.
"""

import math

import numpy as np
from numba import njit

from tt_perception.lens import undistort_kernel

MAX_CANDIDATES = 16  # per view; the best scores are kept
NO_CANDIDATE = -1


@njit(cache=True, nogil=True)
def ray_kernel(u, v, matrix, table_from_camera, direction):  # type: ignore[no-untyped-def]
    """Write the unit direction (table frame) of the ray through undistorted pixel (u, v)."""
    y = (v - matrix[1, 2]) / matrix[1, 1]
    x = (u - matrix[0, 2] - matrix[0, 1] * y) / matrix[0, 0]
    norm = np.sqrt(x * x + y * y + 1.0)
    for k in range(3):
        direction[k] = (
            table_from_camera[k, 0] * x + table_from_camera[k, 1] * y + table_from_camera[k, 2]
        ) / norm


@njit(cache=True, nogil=True)
def _squared_error(projection, px, py, pz, u, v):  # type: ignore[no-untyped-def]
    """Squared reprojection error, px²; infinite behind the camera."""
    w = projection[2, 0] * px + projection[2, 1] * py + projection[2, 2] * pz + projection[2, 3]
    if not w > 0.05:
        return np.inf
    du = (projection[0, 0] * px + projection[0, 1] * py + projection[0, 2] * pz + projection[0, 3]) / w - u
    dv = (projection[1, 0] * px + projection[1, 1] * py + projection[1, 2] * pz + projection[1, 3]) / w - v
    return du * du + dv * dv


@njit(cache=True, nogil=True)
def _vote(projections, uv, counts, sigmas, gate, px, py, pz, choice):  # type: ignore[no-untyped-def]
    """Fill `choice` with the nearest candidate of each view inside the gate.

    Returns:
        Number of votes and their summed squared error in units of sigma².
    """
    votes = 0
    total = 0.0
    for view in range(counts.shape[0]):
        choice[view] = NO_CANDIDATE
        best = gate * gate
        for candidate in range(counts[view]):
            error = _squared_error(
                projections[view], px, py, pz, uv[view, candidate, 0], uv[view, candidate, 1]
            ) / (sigmas[view] * sigmas[view])
            if error < best:
                best = error
                choice[view] = candidate
        if choice[view] != NO_CANDIDATE:
            votes += 1
            total += best
    return votes, total


@njit(cache=True, nogil=True)
def _midpoint(c1, d1, c2, d2, point):  # type: ignore[no-untyped-def]
    """Point midway between two rays at their closest approach; False when they are parallel or it is behind."""
    dot = d1[0] * d2[0] + d1[1] * d2[1] + d1[2] * d2[2]
    det = 1.0 - dot * dot
    if det < 1e-6:
        return False
    b0, b1, b2 = c2[0] - c1[0], c2[1] - c1[1], c2[2] - c1[2]
    along1 = b0 * d1[0] + b1 * d1[1] + b2 * d1[2]
    along2 = b0 * d2[0] + b1 * d2[1] + b2 * d2[2]
    s = (along1 - dot * along2) / det
    t = (dot * along1 - along2) / det
    if s <= 0.0 or t <= 0.0:
        return False
    for k in range(3):
        point[k] = 0.5 * (c1[k] + s * d1[k] + c2[k] + t * d2[k])
    return True


@njit(cache=True, nogil=True)
def search_kernel(  # type: ignore[no-untyped-def]
    projections,
    centres,
    directions,
    uv,
    counts,
    sigmas,
    gate,
    bounds,
    prior,
    prior_radius,
    taken,
    choice,
    point,
):
    """Find the hypothesis with most votes; among equals one near the prior, then the smallest error.

    Args:
        projections: shape (v, 3, 4).
        centres: camera centres, shape (v, 3).
        directions: unit rays of the candidates, shape (v, c, 3).
        uv: undistorted pixels, shape (v, c, 2).
        counts: candidates per view, shape (v,).
        sigmas: pixel standard deviation per view, shape (v,).
        gate: largest reprojection error of a vote in units of sigma.
        bounds: smallest and largest point, shape (2, 3), m.
        prior: expected position, shape (3,), NaN when there is none.
        prior_radius: m.
        taken: choice of an earlier winner, or all -1; hypotheses that share two or more of its candidates
            are skipped.
        choice: output, chosen candidate per view or -1.
        point: output, shape (3,).

    Returns:
        Number of votes (0 when nothing is consistent).
    """
    views = counts.shape[0]
    trial = np.empty(views, np.int64)
    x = np.empty(3)
    best_votes = 0
    best_near = False
    best_error = np.inf
    has_prior = prior[0] == prior[0]
    for i in range(views):
        for j in range(i + 1, views):
            for a in range(counts[i]):
                for b in range(counts[j]):
                    if not _midpoint(centres[i], directions[i, a], centres[j], directions[j, b], x):
                        continue
                    if (
                        x[0] < bounds[0, 0]
                        or x[0] > bounds[1, 0]
                        or x[1] < bounds[0, 1]
                        or x[1] > bounds[1, 1]
                        or x[2] < bounds[0, 2]
                        or x[2] > bounds[1, 2]
                    ):
                        continue
                    ei = _squared_error(projections[i], x[0], x[1], x[2], uv[i, a, 0], uv[i, a, 1])
                    ej = _squared_error(projections[j], x[0], x[1], x[2], uv[j, b, 0], uv[j, b, 1])
                    limit = gate * gate
                    if ei > limit * sigmas[i] * sigmas[i] or ej > limit * sigmas[j] * sigmas[j]:
                        continue
                    votes, error = _vote(projections, uv, counts, sigmas, gate, x[0], x[1], x[2], trial)
                    if votes < 2:
                        continue
                    shared = 0
                    for view in range(views):
                        if trial[view] != NO_CANDIDATE and trial[view] == taken[view]:
                            shared += 1
                    if shared >= 2:
                        continue
                    near = False
                    if has_prior:
                        dx, dy, dz = x[0] - prior[0], x[1] - prior[1], x[2] - prior[2]
                        near = dx * dx + dy * dy + dz * dz < prior_radius * prior_radius
                    better = votes > best_votes
                    if votes == best_votes:
                        better = (near and not best_near) or (near == best_near and error < best_error)
                    if better:
                        best_votes, best_near, best_error = votes, near, error
                        for view in range(views):
                            choice[view] = trial[view]
                        for k in range(3):
                            point[k] = x[k]
    return best_votes


@njit(cache=True, nogil=True)
def refine_kernel(projections, uv, choice, sigmas, point, cov):  # type: ignore[no-untyped-def]
    """Gauss-Newton on the reprojection error of the chosen candidates, in place.

    Args:
        projections: shape (v, 3, 4).
        uv: shape (v, c, 2).
        choice: chosen candidate per view or -1.
        sigmas: shape (v,), px.
        point: start, then result, shape (3,).
        cov: output, (Jᵀ Σ⁻¹ J)⁻¹ at the result, shape (3, 3), m².

    Returns:
        Sum of squared errors in units of sigma², NaN when the geometry is singular.
    """
    total = np.nan
    for _ in range(8):
        a00 = a01 = a02 = a11 = a12 = a22 = 0.0
        g0 = g1 = g2 = 0.0
        total = 0.0
        for view in range(choice.shape[0]):
            if choice[view] == NO_CANDIDATE:
                continue
            p = projections[view]
            w = p[2, 0] * point[0] + p[2, 1] * point[1] + p[2, 2] * point[2] + p[2, 3]
            if not w > 1e-6:
                return np.nan
            weight = 1.0 / (sigmas[view] * sigmas[view])
            for row in range(2):
                value = (p[row, 0] * point[0] + p[row, 1] * point[1] + p[row, 2] * point[2] + p[row, 3]) / w
                r = uv[view, choice[view], row] - value
                j0 = (p[row, 0] - value * p[2, 0]) / w
                j1 = (p[row, 1] - value * p[2, 1]) / w
                j2 = (p[row, 2] - value * p[2, 2]) / w
                a00 += weight * j0 * j0
                a01 += weight * j0 * j1
                a02 += weight * j0 * j2
                a11 += weight * j1 * j1
                a12 += weight * j1 * j2
                a22 += weight * j2 * j2
                g0 += weight * j0 * r
                g1 += weight * j1 * r
                g2 += weight * j2 * r
                total += weight * r * r
        c00 = a11 * a22 - a12 * a12
        c01 = a02 * a12 - a01 * a22
        c02 = a01 * a12 - a02 * a11
        det = a00 * c00 + a01 * c01 + a02 * c02
        scale = (a00 + a11 + a22) / 3.0
        if not det > 1e-12 * scale * scale * scale:
            return np.nan
        c11 = a00 * a22 - a02 * a02
        c12 = a01 * a02 - a00 * a12
        c22 = a00 * a11 - a01 * a01
        cov[0, 0] = c00 / det
        cov[0, 1] = cov[1, 0] = c01 / det
        cov[0, 2] = cov[2, 0] = c02 / det
        cov[1, 1] = c11 / det
        cov[1, 2] = cov[2, 1] = c12 / det
        cov[2, 2] = c22 / det
        s0 = cov[0, 0] * g0 + cov[0, 1] * g1 + cov[0, 2] * g2
        s1 = cov[1, 0] * g0 + cov[1, 1] * g1 + cov[1, 2] * g2
        s2 = cov[2, 0] * g0 + cov[2, 1] * g1 + cov[2, 2] * g2
        point[0] += s0
        point[1] += s1
        point[2] += s2
        if s0 * s0 + s1 * s1 + s2 * s2 < 1e-16:
            break
    return total


@njit(cache=True, nogil=True)
def locate_kernel(  # type: ignore[no-untyped-def]
    matrices,
    poses,
    projections,
    uv,
    counts,
    sigmas,
    gate,
    pair_gate,
    lone_gate,
    bounds,
    prior,
    prior_radius,
    choice,
    point,
    cov,
):
    """Subset search, refinement and re-check on the final set.

    Args: as `search_kernel`; `matrices` (v, 3, 3) and `poses` (v, 4, 4) give the rays; `pair_gate` is the
    largest root of the summed squared errors of only two views (one degree of freedom: the gap between the
    rays), `lone_gate` the same where two or more views see something else; `cov` is output.

    Returns:
        votes of the winner (0: nothing consistent; -1: singular geometry),
        votes of the best other explanation that shares at most one candidate with the winner,
        sum of squared errors in units of sigma².
    """
    views = counts.shape[0]
    centres = np.empty((views, 3))
    directions = np.empty((views, uv.shape[1], 3))
    several = False
    occupied = 0
    for view in range(views):
        for k in range(3):
            centres[view, k] = poses[view, k, 3]
        for candidate in range(counts[view]):
            ray_kernel(
                uv[view, candidate, 0], uv[view, candidate, 1], matrices[view], poses[view],
                directions[view, candidate],
            )  # fmt: skip
        several = several or counts[view] > 1
        occupied += 1 if counts[view] > 0 else 0
    nobody = np.full(views, NO_CANDIDATE, np.int64)
    # The midpoint is not yet the best point: votes are gated twice as wide before the refinement.
    votes = search_kernel(
        projections, centres, directions, uv, counts, sigmas, 2.0 * gate, bounds, prior, prior_radius,
        nobody, choice, point,
    )  # fmt: skip
    if votes < 2:
        return 0, 0, 0.0
    trial = np.empty(views, np.int64)
    total = 0.0
    for _ in range(4):
        total = refine_kernel(projections, uv, choice, sigmas, point, cov)
        if np.isnan(total):
            return -1, 0, 0.0
        votes, _ = _vote(projections, uv, counts, sigmas, gate, point[0], point[1], point[2], trial)
        if votes < 2:
            # One bad voter can pull the point out of everybody's gate: drop the worst and try again.
            worst, worst_error = NO_CANDIDATE, 0.0
            left = 0
            for view in range(views):
                if choice[view] == NO_CANDIDATE:
                    continue
                left += 1
                error = _squared_error(
                    projections[view], point[0], point[1], point[2],
                    uv[view, choice[view], 0], uv[view, choice[view], 1],
                ) / (sigmas[view] * sigmas[view])  # fmt: skip
                if error > worst_error:
                    worst, worst_error = view, error
            if left <= 2 or worst == NO_CANDIDATE:
                return 0, 0, 0.0
            choice[worst] = NO_CANDIDATE
            continue
        same = True
        for view in range(views):
            if trial[view] != choice[view]:
                same = False
            choice[view] = trial[view]
        if same:
            break
    total = refine_kernel(projections, uv, choice, sigmas, point, cov)
    if np.isnan(total):
        return -1, 0, 0.0
    votes = 0
    for view in range(views):
        votes += 1 if choice[view] != NO_CANDIDATE else 0
    limit = lone_gate if occupied - votes >= 2 else pair_gate
    if votes == 2 and total > limit * limit:
        return 0, 0, 0.0
    rival_votes = 0
    if several or votes < occupied:
        rival = np.empty(views, np.int64)
        rival_point = np.empty(3)
        rival_votes = search_kernel(
            projections, centres, directions, uv, counts, sigmas, gate, bounds, prior, prior_radius,
            choice, rival, rival_point,
        )  # fmt: skip
        if rival_votes == 2:
            rival_error = refine_kernel(projections, uv, rival, sigmas, rival_point, np.empty((3, 3)))
            if not rival_error < pair_gate * pair_gate:
                rival_votes = 0
    return votes, rival_votes, total


@njit(cache=True, nogil=True)
def locate_pixels_kernel(  # type: ignore[no-untyped-def]
    matrices,
    distortions,
    poses,
    projections,
    raw,
    uv,
    counts,
    sigmas,
    gate,
    pair_gate,
    lone_gate,
    bounds,
    prior,
    prior_radius,
    choice,
    point,
    cov,
):
    """`locate_kernel` from pixels as the lenses make them.

    Args: as `locate_kernel`; `distortions` (v, 5), `raw` (v, n, 2) the pixels. `uv` (v, n, 2) and `counts` (v,)
    receive the undistorted pixels, far outside where one has none or is not finite, and 0 for a view without any.

    Returns:
        views that see something, votes of the winner and of the best other explanation (see `locate_kernel`),
        root mean square of the reprojection errors, px.
    """
    views = counts.shape[0]
    seen = 0
    for view in range(views):
        number = counts[view]
        undistort_kernel(raw[view, :number], matrices[view], distortions[view], uv[view, :number])
        usable = 0
        for i in range(number):
            if np.isfinite(uv[view, i, 0]) and np.isfinite(uv[view, i, 1]):
                usable += 1
            else:  # it keeps its place, because `choice` refers to it
                uv[view, i, 0] = uv[view, i, 1] = -1e9
        if usable == 0:
            counts[view] = 0
        else:
            seen += 1
    if seen < 2:
        return seen, 0, 0, 0.0
    votes, rival, _ = locate_kernel(
        matrices, poses, projections, uv, counts, sigmas, gate, pair_gate, lone_gate, bounds, prior,
        prior_radius, choice, point, cov,
    )  # fmt: skip
    if votes <= 0:
        return seen, votes, rival, 0.0
    total, inliers = 0.0, 0
    for view in range(views):
        if choice[view] != NO_CANDIDATE:
            inliers += 1
            total += _squared_error(
                projections[view], point[0], point[1], point[2],
                uv[view, choice[view], 0], uv[view, choice[view], 1],
            )  # fmt: skip
    return seen, votes, rival, math.sqrt(total / inliers)
