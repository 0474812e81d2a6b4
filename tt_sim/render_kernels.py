"""Compiled parts of the renderer: room, table and net along a ray, and the ball with motion blur.

The walls are dark, as the laws of the game ask of surrounds (ITTF handbook 3.2.3). Colours are linear
intensities in 0..255 as blue, green, red; mono images use their Rec. 601 grey.
"""

import numpy as np
from numba import njit

# Geometry of the picture that the rest of the stack does not need, m.
_LINE_M = 0.02
_CENTRE_LINE_M = 0.003
_TABLE_THICK_M = 0.03
_NET_TAPE_M = 0.015
_HALF_WIDTH_M = 0.7625
_HALF_LENGTH_M = 1.37
_NET_HALF_M = 0.915
_NET_HEIGHT_M = 0.1525
_FLOOR_M = -0.76
_ROOM_X_M = 3.6
_ROOM_Y_M = 5.2
_CEILING_M = 2.4


@njit(cache=True, nogil=True)
def _hash01(i, j):  # type: ignore[no-untyped-def]
    """Repeatable pseudo-random number in 0..1 of a lattice cell."""
    value = np.sin(i * 12.9898 + j * 78.233) * 43758.5453
    return value - np.floor(value)


@njit(cache=True, nogil=True)
def _texture(u, v):  # type: ignore[no-untyped-def]
    """Smooth value noise in -1..1."""
    i, j = np.floor(u), np.floor(v)
    fu, fv = u - i, v - j
    fu, fv = fu * fu * (3.0 - 2.0 * fu), fv * fv * (3.0 - 2.0 * fv)
    a = _hash01(i, j) * (1.0 - fu) + _hash01(i + 1.0, j) * fu
    b = _hash01(i, j + 1.0) * (1.0 - fu) + _hash01(i + 1.0, j + 1.0) * fu
    return 2.0 * (a * (1.0 - fv) + b * fv) - 1.0


@njit(cache=True, nogil=True)
def shade_ray(ox, oy, oz, dx, dy, dz, out):  # type: ignore[no-untyped-def]
    """Write the colour (b, g, r) that the empty scene shows along a ray from (ox, oy, oz)."""
    nearest = 1e9
    b, g, r = 30.0, 30.0, 30.0
    if abs(dx) > 1e-12:  # walls left and right
        t = ((_ROOM_X_M if dx > 0.0 else -_ROOM_X_M) - ox) / dx
        if 0.0 < t < nearest:
            nearest = t
            shade = 1.0 + 0.10 * _texture((oy + t * dy) * 1.7, (oz + t * dz) * 1.7)
            b, g, r = 80.0 * shade, 74.0 * shade, 70.0 * shade
    if abs(dy) > 1e-12:  # walls at the ends
        t = ((_ROOM_Y_M if dy > 0.0 else -_ROOM_Y_M) - oy) / dy
        if 0.0 < t < nearest:
            nearest = t
            shade = 1.0 + 0.10 * _texture((ox + t * dx) * 1.7 + 31.0, (oz + t * dz) * 1.7)
            b, g, r = 70.0 * shade, 66.0 * shade, 62.0 * shade
    if dz > 1e-12:
        t = (_CEILING_M - oz) / dz
        if 0.0 < t < nearest:
            nearest = t
            b, g, r = 160.0, 160.0, 160.0
    if dz < -1e-12:
        t = (_FLOOR_M - oz) / dz
        if 0.0 < t < nearest:
            nearest = t
            x, y = ox + t * dx, oy + t * dy
            shade = 1.0 + 0.06 * _texture(x * 6.0, y * 6.0) + 0.04 * _texture(x * 23.0, y * 23.0)
            if abs(x) < _HALF_WIDTH_M + 0.2 and abs(y) < _HALF_LENGTH_M + 0.2:
                shade *= 0.6  # in the shadow of the table
            b, g, r = 52.0 * shade, 66.0 * shade, 96.0 * shade
        t = -oz / dz
        if 0.0 < t < nearest:
            x, y = ox + t * dx, oy + t * dy
            ax, ay = abs(x), abs(y)
            if ax <= _HALF_WIDTH_M and ay <= _HALF_LENGTH_M:
                nearest = t
                if ax > _HALF_WIDTH_M - _LINE_M or ay > _HALF_LENGTH_M - _LINE_M or ax < 0.5 * _CENTRE_LINE_M:
                    b, g, r = 215.0, 215.0, 215.0
                else:
                    shade = 1.0 + 0.03 * _texture(x * 9.0, y * 9.0)
                    b, g, r = 112.0 * shade, 66.0 * shade, 34.0 * shade
    # Side faces of the table top.
    for side in range(2):
        along = dx if side == 0 else dy
        origin = ox if side == 0 else oy
        half = _HALF_WIDTH_M if side == 0 else _HALF_LENGTH_M
        if abs(along) < 1e-12:
            continue
        t = ((half if along < 0.0 else -half) - origin) / along
        if 0.0 < t < nearest:
            z = oz + t * dz
            other = oy + t * dy if side == 0 else ox + t * dx
            limit = _HALF_LENGTH_M if side == 0 else _HALF_WIDTH_M
            if -_TABLE_THICK_M <= z <= 0.0 and abs(other) <= limit:
                nearest = t
                b, g, r = 40.0, 30.0, 24.0
    if abs(dy) > 1e-12:  # net: white tape on top, the mesh lets half of the light through
        t = -oy / dy
        if 0.0 < t < nearest:
            x, z = ox + t * dx, oz + t * dz
            if abs(x) <= _NET_HALF_M and 0.0 < z <= _NET_HEIGHT_M:
                if z > _NET_HEIGHT_M - _NET_TAPE_M:
                    b, g, r = 205.0, 205.0, 205.0
                else:
                    b, g, r = 0.5 * b + 12.0, 0.5 * g + 12.0, 0.5 * r + 12.0
    out[0], out[1], out[2] = b, g, r


@njit(cache=True, nogil=True)
def background_kernel(rays, pose, dudx, samples, image):  # type: ignore[no-untyped-def]
    """Fill `image` (h, w, c) with the empty scene, `samples`² rays per pixel.

    Args:
        rays: undistorted normalised x, y of each pixel centre, shape (h, w, 2).
        pose: table_from_camera, shape (4, 4).
        dudx: change of the normalised coordinates per pixel (1 / focal length).
        samples: rays per pixel and axis.
        image: output, float32; c = 1 (grey) or 3 (b, g, r).
    """
    height, width, channels = image.shape
    colour = np.empty(3)
    scale = 1.0 / (samples * samples)
    for row in range(height):
        for column in range(width):
            sum0 = sum1 = sum2 = 0.0
            for i in range(samples):
                y = rays[row, column, 1] + ((i + 0.5) / samples - 0.5) * dudx
                for j in range(samples):
                    x = rays[row, column, 0] + ((j + 0.5) / samples - 0.5) * dudx
                    dx = pose[0, 0] * x + pose[0, 1] * y + pose[0, 2]
                    dy = pose[1, 0] * x + pose[1, 1] * y + pose[1, 2]
                    dz = pose[2, 0] * x + pose[2, 1] * y + pose[2, 2]
                    shade_ray(pose[0, 3], pose[1, 3], pose[2, 3], dx, dy, dz, colour)
                    sum0 += colour[0]
                    sum1 += colour[1]
                    sum2 += colour[2]
            if channels == 1:
                image[row, column, 0] = (0.114 * sum0 + 0.587 * sum1 + 0.299 * sum2) * scale
            else:
                image[row, column, 0] = sum0 * scale
                image[row, column, 1] = sum1 * scale
                image[row, column, 2] = sum2 * scale


@njit(cache=True, nogil=True)
def ball_kernel(  # type: ignore[no-untyped-def]
    image, rays, top, left, start, end, radius, samples, softness, colour, lights, ambient, gain
):
    """Blend a moving, shaded ball into a patch of a float image.

    A pixel is covered where its ray passes the ball's centre nearer than the radius; the edge is a ramp
    `softness` pixels wide (pixel area and lens blur). The exposure is averaged over `samples` positions from
    `start` to `end`.

    Args:
        image: patch, shape (h, w, c), float32, in place.
        rays: normalised coordinates of the whole image, shape (H, W, 2).
        top: row of the patch in the image.
        left: column of the patch.
        start: ball centre in the optical frame when the shutter opens, shape (3,), m.
        end: when it closes.
        radius: m.
        samples: number of positions over the exposure.
        softness: width of the edge, in normalised coordinates.
        colour: intensity of the ball per channel when fully lit, shape (c,).
        lights: unit vectors towards the lamps in the optical frame, shape (l, 3).
        ambient: share of the light that comes from everywhere.
        gain: brightness of the scene.
    """
    height, width, channels = image.shape
    for row in range(height):
        for column in range(width):
            x = rays[top + row, left + column, 0]
            y = rays[top + row, left + column, 1]
            norm = np.sqrt(x * x + y * y + 1.0)
            dx, dy, dz = x / norm, y / norm, 1.0 / norm
            covered = 0.0
            lit = 0.0
            for k in range(samples):
                f = (k + 0.5) / samples
                cx = start[0] + f * (end[0] - start[0])
                cy = start[1] + f * (end[1] - start[1])
                cz = start[2] + f * (end[2] - start[2])
                along = cx * dx + cy * dy + cz * dz
                px, py, pz = cx - along * dx, cy - along * dy, cz - along * dz
                miss = np.sqrt(px * px + py * py + pz * pz)
                # Width of the ramp in metres at the ball.
                ramp = softness * along / norm
                c = 0.5 + (radius - miss) / ramp
                if c <= 0.0:
                    continue
                c = min(c, 1.0)
                c = c * c * (3.0 - 2.0 * c)
                inside = miss if miss < radius else radius
                back = np.sqrt(radius * radius - inside * inside)
                scale = inside / miss if miss > 1e-12 else 0.0
                # Surface normal of the visible point: from the centre towards the camera.
                nx = (-px * scale - back * dx) / radius
                ny = (-py * scale - back * dy) / radius
                nz = (-pz * scale - back * dz) / radius
                lambert = 0.0
                for lamp in range(lights.shape[0]):
                    towards = nx * lights[lamp, 0] + ny * lights[lamp, 1] + nz * lights[lamp, 2]
                    if towards > 0.0:
                        lambert += towards / lights.shape[0]
                covered += c
                lit += c * (ambient + (1.0 - ambient) * lambert)
            if covered <= 0.0:
                continue
            alpha = covered / samples
            for channel in range(channels):
                value = gain * colour[channel] * lit / samples
                image[row, column, channel] = image[row, column, channel] * (1.0 - alpha) + value


@njit(cache=True, nogil=True)
def shadow_kernel(image, rays, top, left, pose, centre_x, centre_y, inner, outer, depth):  # type: ignore[no-untyped-def]
    """Darken the table top under a ball: full `depth` inside `inner`, fading to none at `outer` (m)."""
    height, width, channels = image.shape
    for row in range(height):
        for column in range(width):
            x = rays[top + row, left + column, 0]
            y = rays[top + row, left + column, 1]
            dz = pose[2, 0] * x + pose[2, 1] * y + pose[2, 2]
            if dz > -1e-9:
                continue
            t = -pose[2, 3] / dz
            hx = pose[0, 3] + t * (pose[0, 0] * x + pose[0, 1] * y + pose[0, 2])
            hy = pose[1, 3] + t * (pose[1, 0] * x + pose[1, 1] * y + pose[1, 2])
            if abs(hx) > _HALF_WIDTH_M or abs(hy) > _HALF_LENGTH_M:
                continue
            distance = np.sqrt((hx - centre_x) * (hx - centre_x) + (hy - centre_y) * (hy - centre_y))
            if distance >= outer:
                continue
            share = 1.0 if distance <= inner else (outer - distance) / (outer - inner)
            for channel in range(channels):
                image[row, column, channel] *= 1.0 - depth * share


@njit(cache=True, nogil=True)
def noise_kernel(patch, normals, offset, read_noise, shot_noise, out):  # type: ignore[no-untyped-def]
    """Add sensor noise (read and shot) to a float patch and round it to 8 bits.

    Args:
        patch: shape (h, w, c), float32.
        normals: table of standard normal numbers, shape (n,).
        offset: where to start in the table.
        read_noise: grey levels.
        shot_noise: grey levels² per grey level.
        out: uint8, same shape.
    """
    height, width, channels = patch.shape
    index = offset % normals.shape[0]
    for row in range(height):
        for column in range(width):
            for channel in range(channels):
                value = patch[row, column, channel]
                value = max(value, 0.0)
                sigma = np.sqrt(read_noise * read_noise + shot_noise * value)
                value = value + sigma * normals[index] + 0.5
                index += 1
                if index == normals.shape[0]:
                    index = 0
                out[row, column, channel] = 255 if value > 255.0 else (0 if value < 0.0 else int(value))
