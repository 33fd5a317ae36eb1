"""A memory-bound program: a table of 128 MiB, sorted by one thread."""

import sys

import numpy as np

mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else 128
table = np.random.default_rng(1).random(mebibytes * 1024 * 1024 // 8)
table.sort()
print(f"{table[len(table) // 2]:.3f}")
