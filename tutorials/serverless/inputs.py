"""Writes the inputs of the functions: picture.npy, 1 x 384 x 512 pixels of three colours, and bytes.bin of 1 MiB."""

from pathlib import Path

import numpy as np

random = np.random.default_rng(1)
np.save("picture.npy", random.integers(0, 256, (1, 384, 512, 3), dtype=np.uint8))
Path("bytes.bin").write_bytes(random.bytes(1024 * 1024))
