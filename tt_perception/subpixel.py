"""Sub-pixel centre of a ball against a known background, compiled.

A pixel of the ball's edge shows `a F + (1 − a) B`: coverage a, ball F, background B. The background is
known, and the ball's brightness is smooth (fitted spherical harmonics, because lamps light it from one side), so
the coverage follows and its centroid is the centre, also under motion blur: the centroid of a streak is the
mid-exposure position.
Where ball and background are equally bright the coverage is unknown and the disc found so far fills in.
"""

import numpy as np
from numba import njit

from tt_perception.cholesky import solve_spd

_TERMS = 9
_EDGE_PX = 0.7  # half the width of an edge: pixel and lens blur
_RIDGE = 0.005
_SMALLEST_PIVOT = 1e-9
_MIN_CONTRAST = 14.0  # grey levels; below, the coverage drowns in the noise


@njit(cache=True, nogil=True)
def _harmonics(x, y, row):  # type: ignore[no-untyped-def]
    """Unnormalised spherical harmonics up to degree 2 of the visible surface point at (x, y) of a unit ball.

    Outside the silhouette those of the nearest point of its edge.
    """
    rho = x * x + y * y
    if rho > 1.0:
        scale = 1.0 / np.sqrt(rho)
        x, y, rho = x * scale, y * scale, 1.0
    z = np.sqrt(1.0 - rho)
    row[0], row[1], row[2], row[3] = 1.0, x, y, z
    row[4], row[5], row[6], row[7], row[8] = x * y, x * z, y * z, x * x - y * y, 3.0 * z * z - 1.0


@njit(cache=True, nogil=True)
def _fit_brightness(image, centre_u, centre_v, suu, svv, suv, a, b):  # type: ignore[no-untyped-def]
    """Fit spherical harmonics to the pixels that the ball covers all the time.

    The second moments give radius and streak; a pixel is covered all the time when it is within the radius
    of both ends of the streak. Where too few pixels are, the least partly covered ones join.

    Returns:
        Radius of the ball in px, or 0 when the fit failed; brightness of the darkest pixel used. The side
        that no lamp lights is evenly dark, so the fit must not fall below it at the edge.
    """
    height, width = image.shape
    mean, half = 0.5 * (suu + svv), np.sqrt(0.25 * (suu - svv) * (suu - svv) + suv * suv)
    minor = mean - half
    if not minor > 0.05:
        return 0.0, 0.0
    radius = 2.0 * np.sqrt(minor)
    reach = 0.5 * np.sqrt(24.0 * half)  # half a streak: a streak of length s has variance s²/12
    angle = 0.5 * np.arctan2(2.0 * suv, suu - svv)
    cos, sin = np.cos(angle), np.sin(angle)
    row = np.empty(_TERMS)
    limit = radius - _EDGE_PX
    for _ in range(6):
        a[:, :] = 0.0
        b[:, :] = 0.0
        inside = 0
        darkest = 255.0
        for v in range(height):
            for u in range(width):
                du, dv = u - centre_u, v - centre_v
                along, across = abs(du * cos + dv * sin) + reach, dv * cos - du * sin
                if along * along + across * across > limit * limit:
                    continue
                _harmonics(du / radius, dv / radius, row)
                for i in range(_TERMS):
                    for j in range(i + 1):
                        a[i, j] += row[i] * row[j]
                    b[i, 0] += row[i] * image[v, u]
                darkest = min(darkest, float(image[v, u]))
                inside += 1
        if inside >= 8:
            break
        limit = max(limit, reach) + 0.5
    if inside < 5:
        return 0.0, 0.0
    for i in range(_TERMS):
        a[i, i] += 1e-6
    # Few pixels tell the higher terms, and they must not run away at the edge.
    for i in range(3, _TERMS):
        a[i, i] += _RIDGE * inside
    return (radius if solve_spd(a, _TERMS, b, 1, _SMALLEST_PIVOT) else 0.0), darkest


@njit(cache=True, nogil=True)
def _brightness(b, x, y, row):  # type: ignore[no-untyped-def]
    """Fitted brightness at (x, y), in units of the radius."""
    _harmonics(x, y, row)
    value = 0.0
    for i in range(_TERMS):
        value += b[i, 0] * row[i]
    return value


@njit(cache=True, nogil=True)
def refine_centre(image, background, mask, result):  # type: ignore[no-untyped-def]
    """Centre and size of the blob that fills `mask`.

    Args:
        image: patch around the blob with a margin of 3 px, uint8, shape (h, w).
        background: same patch of the background.
        mask: non-zero where the blob is.
        result: output, shape (7,): centre u, v in the patch; coverage area, px²; semi-axes of the ellipse
            with the same second moments, px; mean signed contrast; share of pixels whose coverage was
            unknown.

    Returns:
        True when the coverage could be measured; the result describes the mask itself otherwise.
    """
    height, width = image.shape
    count = 0
    sum_u = sum_v = uu = vv = uv = signed = 0.0
    for v in range(height):
        for u in range(width):
            if mask[v, u]:
                count += 1
                sum_u += u
                sum_v += v
                uu += u * u
                vv += v * v
                uv += u * v
                signed += float(image[v, u]) - float(background[v, u])
    if count == 0:
        return False
    cu, cv = sum_u / count, sum_v / count
    suu, svv, suv = uu / count - cu * cu + 0.08, vv / count - cv * cv + 0.08, uv / count - cu * cv
    fit_u, fit_v = cu, cv
    a = np.zeros((_TERMS, _TERMS))
    b = np.zeros((_TERMS, 1))
    row = np.empty(_TERMS)
    radius, darkest = _fit_brightness(image, cu, cv, suu, svv, suv, a, b)
    fitted = radius > 0.0
    area, unknown_share = float(count), 0.0
    for iteration in range(3):
        if not fitted:
            break
        det = suu * svv - suv * suv
        if not det > 1e-6:
            break
        weight = unknown = 0.0
        sum_u = sum_v = uu = vv = uv = 0.0
        for v in range(1, height - 1):
            for u in range(1, width - 1):
                near = False
                for dv in range(-1, 2):
                    for du in range(-1, 2):
                        near = near or mask[v + dv, u + du] != 0
                if not near:
                    continue
                ball = max(_brightness(b, (u - fit_u) / radius, (v - fit_v) / radius, row), darkest)
                contrast = ball - float(background[v, u])
                if abs(contrast) < _MIN_CONTRAST:
                    du_, dv_ = u - cu, v - cv
                    # Distance in standard deviations; the edge of a disc lies at 2.
                    m = np.sqrt(max(svv * du_ * du_ - 2.0 * suv * du_ * dv_ + suu * dv_ * dv_, 0.0) / det)
                    coverage = 0.5 + (2.0 - m) * 0.5 * np.sqrt(area / np.pi)
                    unknown += 1.0
                else:
                    coverage = (float(image[v, u]) - float(background[v, u])) / contrast
                coverage = min(max(coverage, 0.0), 1.0)
                weight += coverage
                sum_u += coverage * u
                sum_v += coverage * v
                uu += coverage * u * u
                vv += coverage * v * v
                uv += coverage * u * v
        if weight < 3.0:
            fitted = False
            break
        cu, cv, area = sum_u / weight, sum_v / weight, weight
        suu, svv, suv = uu / weight - cu * cu, vv / weight - cv * cv, uv / weight - cu * cv
        unknown_share = unknown / weight
        if iteration == 0:
            # The mask was shifted and swollen by its threshold: fit the brightness again on the better disc.
            fit_u, fit_v = cu, cv
            radius, darkest = _fit_brightness(image, cu, cv, suu, svv, suv, a, b)
            fitted = radius > 0.0
        elif unknown == 0.0:
            break
    mean, half = 0.5 * (suu + svv), np.sqrt(max(0.25 * (suu - svv) * (suu - svv) + suv * suv, 0.0))
    result[0], result[1], result[2] = cu, cv, area
    result[3], result[4] = 2.0 * np.sqrt(max(mean + half, 0.0)), 2.0 * np.sqrt(max(mean - half, 0.0))
    result[5], result[6] = signed / count, unknown_share
    return fitted
