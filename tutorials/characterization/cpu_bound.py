"""A CPU-bound program: products of matrices, with a thread for each available core."""

import sys

import numpy as np

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
a = np.random.default_rng(1).random((1000, 1000))
for _ in range(rounds):
    a = a @ a
    a /= np.abs(a).max()
print(f"{a.mean():.3f}")
