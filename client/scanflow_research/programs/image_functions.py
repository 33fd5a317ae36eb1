"""The functions of the serverless experiment (Decker et al., 2.2): image processing, the same with a pause instead of
work, and the reversal of bytes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PAUSE_S = 0.2


class Images:
    """Blur, sharpen, wave and normalize an image of shape (1, height, width, 3)."""

    def predict(self, inputs: Any) -> Any:
        return process_image(inputs[0])[np.newaxis]


class FragileImages(Images):
    """The same, but it does not start while the file ``down`` exists: restarts do not repair the service."""

    def __init__(self, down: str) -> None:
        if Path(down).exists():
            raise RuntimeError(f"{down} exists: this service is broken.")


class Pauses:
    """Wait, as the study's null processing does, and return the mean colour."""

    def predict(self, inputs: Any) -> Any:
        time.sleep(PAUSE_S)
        return inputs.mean(axis=(1, 2))


class Reversal:
    """Return a body's bytes in reverse."""

    def predict(self, inputs: Any) -> Any:
        return inputs[..., ::-1].copy()


def process_image(image: Any) -> Any:
    """Return an image processed by the study's kinds of filters, on one core."""
    spectrum = np.fft.rfft2(image, axes=(0, 1))
    decay = np.exp(-np.abs(np.fft.fftfreq(image.shape[0]))[:, None, None] * 8)
    blurred = np.fft.irfft2(spectrum * decay, s=image.shape[:2], axes=(0, 1))
    sharpened = image + 0.5 * (image - blurred)
    shifts = (8 * np.sin(np.arange(image.shape[0]) / 20)).astype(int)
    waved = np.stack([np.roll(row, shift, axis=0) for row, shift in zip(sharpened, shifts, strict=True)])
    low, high = waved.min(), waved.max()
    return ((waved - low) / (high - low + 1e-9)).astype(np.float32)


def count_calls(side: int, seconds: float) -> float:
    """Return the images per second of this process, without a service."""
    image = np.random.default_rng(1).random((side, side, 3), dtype=np.float32)
    process_image(image)
    began, calls = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        process_image(image)
        calls += 1
    return calls / took


if __name__ == "__main__":
    print(count_calls(int(sys.argv[1]), float(sys.argv[2])))
