"""Writes sample.npy: one sample of 512 numbers."""

import numpy as np

np.save("sample.npy", np.random.default_rng(2).random((1, 512), dtype=np.float32))
