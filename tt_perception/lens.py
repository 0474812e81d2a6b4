"""Lens kernels: table points to distorted pixels and back, compiled.

Source: D. C. Brown, Close-Range Camera Calibration, 1971, in the form and coefficient order of OpenCV
and of the ROS distortion model `plumb_bob`.
"""

import numpy as np
from numba import njit

MIN_DEPTH_M = 0.05  # nearer than this to the image plane a point counts as behind the camera


@njit(cache=True, nogil=True)
def project_kernel(points, camera_from_table, matrix, distortion, uv):  # type: ignore[no-untyped-def]
    """Write the distorted pixel of each point into `uv`; NaN where a point is behind the camera.

    A point so far outside the image that the distortion polynomial has turned back counts as not visible too.

    Args:
        points: shape (n, 3), table frame, m.
        camera_from_table: shape (4, 4).
        matrix: shape (3, 3).
        distortion: k1, k2, p1, p2, k3.
        uv: output, shape (n, 2).
    """
    k1, k2, p1, p2, k3 = distortion[0], distortion[1], distortion[2], distortion[3], distortion[4]
    for i in range(points.shape[0]):
        px, py, pz = points[i, 0], points[i, 1], points[i, 2]
        t = camera_from_table
        depth = t[2, 0] * px + t[2, 1] * py + t[2, 2] * pz + t[2, 3]
        if not depth > MIN_DEPTH_M:
            uv[i, 0] = np.nan
            uv[i, 1] = np.nan
            continue
        x = (t[0, 0] * px + t[0, 1] * py + t[0, 2] * pz + t[0, 3]) / depth
        y = (t[1, 0] * px + t[1, 1] * py + t[1, 2] * pz + t[1, 3]) / depth
        r2 = x * x + y * y
        radial = 1.0 + r2 * (k1 + r2 * (k2 + r2 * k3))
        slope = 1.0 + r2 * (3.0 * k1 + r2 * (5.0 * k2 + r2 * 7.0 * k3))
        if not (radial > 0.0 and slope > 0.0):
            uv[i, 0] = np.nan
            uv[i, 1] = np.nan
            continue
        xd = x * radial + 2.0 * p1 * x * y + p2 * (r2 + 2.0 * x * x)
        yd = y * radial + p1 * (r2 + 2.0 * y * y) + 2.0 * p2 * x * y
        uv[i, 0] = matrix[0, 0] * xd + matrix[0, 1] * yd + matrix[0, 2]
        uv[i, 1] = matrix[1, 1] * yd + matrix[1, 2]


@njit(cache=True, nogil=True)
def undistort_kernel(uv, matrix, distortion, out):  # type: ignore[no-untyped-def]
    """Write into `out` the pixel an undistorted camera of the same matrix would have seen.

    Newton iterations on the 2×2 system; converges to below 1e-9 px in 3 to 5 steps for lenses that
    `project_kernel` can invert. NaN where it does not converge.
    """
    k1, k2, p1, p2, k3 = distortion[0], distortion[1], distortion[2], distortion[3], distortion[4]
    fx, skew, cx, fy, cy = matrix[0, 0], matrix[0, 1], matrix[0, 2], matrix[1, 1], matrix[1, 2]
    for i in range(uv.shape[0]):
        yd = (uv[i, 1] - cy) / fy
        xd = (uv[i, 0] - cx - skew * yd) / fx
        x, y = xd, yd
        converged = False
        for _ in range(20):
            r2 = x * x + y * y
            radial = 1.0 + r2 * (k1 + r2 * (k2 + r2 * k3))
            dradial = k1 + r2 * (2.0 * k2 + r2 * 3.0 * k3)  # d radial / d r2
            ex = x * radial + 2.0 * p1 * x * y + p2 * (r2 + 2.0 * x * x) - xd
            ey = y * radial + p1 * (r2 + 2.0 * y * y) + 2.0 * p2 * x * y - yd
            a = radial + 2.0 * x * x * dradial + 2.0 * p1 * y + 6.0 * p2 * x
            b = 2.0 * x * y * dradial + 2.0 * p1 * x + 2.0 * p2 * y
            d = radial + 2.0 * y * y * dradial + 6.0 * p1 * y + 2.0 * p2 * x
            det = a * d - b * b
            if not abs(det) > 1e-9:
                break
            dx = (d * ex - b * ey) / det
            dy = (a * ey - b * ex) / det
            x -= dx
            y -= dy
            if abs(dx) + abs(dy) < 1e-13:
                converged = True
                break
        if converged:
            out[i, 0] = fx * x + skew * y + cx
            out[i, 1] = fy * y + cy
        else:
            out[i, 0] = np.nan
            out[i, 1] = np.nan
