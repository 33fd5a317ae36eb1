"""Measures the pictures a second of 1, 2, 4 ... instances, with two concurrent requests each, as in the study."""

import os
import sys

import numpy as np

import scanflow as sf

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
client = sf.Client()
picture = np.load("picture.npy")
cores, instances, first = len(os.sched_getaffinity(0)), 1, 0.0
while instances <= cores:
    client.scale("images", instances)
    report = client.load("images", picture, seconds=seconds, connections=2 * instances)
    first = first or report.rate
    failed = report.result.failed
    print(f"{instances} × 1 core: {report.rate:.1f} pictures/s, {report.rate / first:.2f} times one, {failed} failed")
    instances *= 2
