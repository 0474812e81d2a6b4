"""Where in an image something differs: boxes around the marked pixels, from a mask of every second row.

A blob that survives an opening with a 3×3 square has at least three pixels side by side in each of at least
three rows in succession, so every second row shows it. The rows in between, the opening and the outlines
are then computed inside the boxes only, which hold a few thousandths of an image.
"""

import numpy as np
from numba import njit

MAX_BOXES = 48
PAD_PX = 8  # around a box: the rows left out, and what the sub-pixel fit wants to see
_GAP_PX = 4  # neighbouring runs of one blob are never farther apart


@njit(cache=True, nogil=True)
def _add_run(boxes, count, row, start, end, reach):  # type: ignore[no-untyped-def]
    """Widen the box that the run [start, end) touches, or open one; returns the number of boxes."""
    for index in range(count - 1, -1, -1):
        if (
            row - boxes[index, 3] <= reach
            and start <= boxes[index, 2] + _GAP_PX
            and end >= boxes[index, 0] - _GAP_PX
        ):
            boxes[index, 0] = min(boxes[index, 0], start)
            boxes[index, 2] = max(boxes[index, 2], end)
            boxes[index, 3] = row + 1
            return count
    if count < boxes.shape[0]:
        boxes[count, 0], boxes[count, 1], boxes[count, 2], boxes[count, 3] = start, row, end, row + 1
    return count + 1


@njit(cache=True, nogil=True)
def _unite(boxes, count):  # type: ignore[no-untyped-def]
    """Unite boxes that touch, in place; returns how many are left."""
    changed = True
    while changed:
        changed = False
        first = 0
        while first < count:
            other = first + 1
            while other < count:
                if (
                    boxes[first, 2] < boxes[other, 0]
                    or boxes[other, 2] < boxes[first, 0]
                    or boxes[first, 3] < boxes[other, 1]
                    or boxes[other, 3] < boxes[first, 1]
                ):
                    other += 1
                    continue
                for k in range(2):
                    boxes[first, k] = min(boxes[first, k], boxes[other, k])
                    boxes[first, k + 2] = max(boxes[first, k + 2], boxes[other, k + 2])
                count -= 1
                for k in range(4):
                    boxes[other, k] = boxes[count, k]
                changed = True
            first += 1
    return count


@njit(cache=True, nogil=True)
def boxes_kernel(words, mask, step, width, height, boxes):  # type: ignore[no-untyped-def]
    """Boxes around the runs of at least three marked pixels, padded and united.

    Args:
        words: `mask` seen as unsigned 64-bit words, shape (h, w/8): eight pixels are skipped at a time.
        mask: 0 or 255, shape (h, w).
        step: rows of the image per row of the mask.
        width: of the image, px.
        height: of the image, px.
        boxes: output, left, top, right, bottom (exclusive), shape (n, 4), int64.

    Returns:
        Number of boxes; -1 when there are more than fit.
    """
    count = 0
    for row in range(words.shape[0]):
        done = 0  # pixels of this row that were looked at
        for word in range(words.shape[1]):
            if words[row, word] == 0:
                continue
            x = max(8 * word, done)
            while x < 8 * word + 8:
                if mask[row, x] == 0:
                    x += 1
                    continue
                start = x
                while x < width and mask[row, x] != 0:
                    x += 1
                if x - start >= 3:
                    count = _add_run(boxes, count, step * row, start, x, 2 * step)
                    if count > boxes.shape[0]:
                        return -1
            done = x
    for index in range(count):
        boxes[index, 0] = max(boxes[index, 0] - PAD_PX, 0)
        boxes[index, 1] = max(boxes[index, 1] - PAD_PX, 0)
        boxes[index, 2] = min(boxes[index, 2] + PAD_PX, width)
        boxes[index, 3] = min(boxes[index, 3] + PAD_PX, height)
    return _unite(boxes, count)


class RowScanner:
    """Finds the boxes of one image size; keeps its arrays.

    Args:
        height: of the images, px.
        width: of the images, px.
        step: every how many rows are looked at.
    """

    def __init__(self, height: int, width: int, step: int) -> None:
        self.step = step
        self._size = (width, height)
        rows = -(-height // step)
        self._buffer = np.zeros((rows, -(-width // 8) * 8), np.uint8)
        self._words = self._buffer.view(np.uint64)
        self._boxes = np.empty((MAX_BOXES, 4), np.int64)
        self.mask = self._buffer[:, :width]

    def boxes(self) -> list[tuple[int, int, int, int]] | None:
        """Boxes (left, top, right, bottom) around what is marked in `mask`; None when it is everywhere."""
        width, height = self._size
        count = boxes_kernel(self._words, self._buffer, self.step, width, height, self._boxes)
        if count < 0:
            return None
        found = [tuple(row) for row in self._boxes[:count].tolist()]
        area = sum((right - left) * (bottom - top) for left, top, right, bottom in found)
        return found if 2 * area < width * height else None  # type: ignore[return-value]
