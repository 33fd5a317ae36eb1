"""A small PNG of an array that is a picture, without an imaging library."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 4  # pixels a side


def thumbnail(values: Any, *, most: int = 64) -> bytes | None:
    """Return a picture (h, w), (h, w, channels) or (channels, h, w) as a PNG file; None: it is no picture.

    Channels are 1, 3 or 4 (the last is left out). Numbers from 0 to 1 or from 0 to 255 are taken as such, others
    from the least to the greatest. Sides longer than ``most`` pixels are thinned out.
    """
    found = np.asarray(values)
    if found.dtype.kind not in "buif":
        return None
    if found.ndim == 3 and found.shape[2] not in {1, 3, 4} and found.shape[0] in {1, 3, 4}:
        found = np.moveaxis(found, 0, 2)
    if found.ndim == 2:
        found = found[..., np.newaxis]
    if found.ndim != 3 or found.shape[2] not in {1, 3, 4} or min(found.shape[:2]) < LEAST:
        return None
    step = -(-max(found.shape[:2]) // most)
    pixels = _bytes(found[::step, ::step, : 1 if found.shape[2] == 1 else 3])
    height, width, channels = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")
    )


def _bytes(found: NDArray[Any]) -> NDArray[np.uint8]:
    if found.dtype == np.uint8:
        return found
    values = np.nan_to_num(found.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    return np.asarray(np.round(255 * (values - low) / ((high - low) or 1.0)), dtype=np.uint8)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
