"""Preprocessing: converts pictures of clients to the format that the network was trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 28
FORMS = ((SIDE, SIDE), (SIDE, SIDE, 1), (SIDE * SIDE,))
NEEDED = "A picture is 28x28 (or 784 in a row): integers from 0 to 255, or fractions from 0 to 1"


class NotAPictureError(ValueError):
    """An invalid request: the service answers 400, not 500."""

    status_code = 400


class Pictures:
    """Accepts one or several pictures, as squares or rows, as integers from 0 to 255 or fractions from 0 to 1."""

    def transform_input(self, X: Any) -> NDArray[np.uint8]:  # noqa: N803  Seldon's name for it
        x = np.asarray(X)
        form = next((form for form in FORMS if x.shape[-len(form) :] == form), None)
        if form is None or x.ndim > len(form) + 1 or x.size == 0:
            raise NotAPictureError(f"{NEEDED}; this is {x.shape}.")
        if x.dtype.kind not in "iuf":
            raise NotAPictureError(f"{NEEDED}; this holds {x.dtype}.")
        # Rows typed on a command line are whole numbers of any type; fractions are those of a picture divided by 255.
        top = 1 if x.dtype.kind == "f" and x.max() <= 1 else 255
        if not (x.min() >= 0 and x.max() <= top):  # nor is it where one of them is no number
            raise NotAPictureError(f"{NEEDED}; this is from {x.min():g} to {x.max():g}.")
        return np.rint(x * (255 / top)).astype(np.uint8).reshape(-1, SIDE, SIDE)


def prepared(part: Any) -> Any:
    """Return the recorded inputs of a file as pictures (n, 28, 28) from 0 to 255; NaN for invalid pictures.

    The service takes pictures in several forms and records them as they came, one by itself as its rows or 784 points.
    """
    if part.shape[1:] in {(), (SIDE,), (SIDE, 1)}:
        part = part.reshape(-1, SIDE, SIDE)
    found = np.full((len(part), SIDE, SIDE), np.nan, dtype=np.float32)
    for at, picture in enumerate(part):
        try:
            found[at] = Pictures().transform_input(picture)[0]
        except NotAPictureError:
            continue
    return found
