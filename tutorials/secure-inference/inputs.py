"""Writes picture.npy: the picture that the requests send."""

import numpy as np

np.save("picture.npy", np.random.default_rng(1).random((1, 784), dtype=np.float32))
