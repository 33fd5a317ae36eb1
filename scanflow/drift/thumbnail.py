"""A small PNG of an array that is a picture, without an imaging library."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_SIDE = 4  # pixels a side


def encode_thumbnail(values: Any, *, most: int = 64) -> bytes | None:
    """Encode a picture (h, w), (h, w, channels) or (channels, h, w) as a PNG file; None if it is not a picture.

    Channels are 1, 3 or 4 (the last is left out). Numbers from 0 to 1 or from 0 to 255 are taken as such, others
    from the least to the greatest. Sides longer than ``most`` pixels are thinned out.
    """
    picture = np.asarray(values)
    if picture.dtype.kind not in "buif":
        return None
    if picture.ndim == 3 and picture.shape[2] not in {1, 3, 4} and picture.shape[0] in {1, 3, 4}:
        picture = np.moveaxis(picture, 0, 2)
    if picture.ndim == 2:
        picture = picture[..., np.newaxis]
    if picture.ndim != 3 or picture.shape[2] not in {1, 3, 4} or min(picture.shape[:2]) < MIN_SIDE:
        return None
    step = -(-max(picture.shape[:2]) // most)
    pixels = _scale_to_bytes(picture[::step, ::step, : 1 if picture.shape[2] == 1 else 3])
    height, width, channels = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _encode_chunk(b"IHDR", head)
        + _encode_chunk(b"IDAT", zlib.compress(lines, 9))
        + _encode_chunk(b"IEND", b"")
    )


def _scale_to_bytes(picture: NDArray[Any]) -> NDArray[np.uint8]:
    if picture.dtype == np.uint8:
        return picture
    values = np.nan_to_num(picture.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    return np.asarray(np.round(255 * (values - low) / ((high - low) or 1.0)), dtype=np.uint8)


def _encode_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
