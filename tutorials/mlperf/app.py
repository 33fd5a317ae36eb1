"""A service of a small network of three layers with random weights, for LoadGen and the tuner."""

from itertools import pairwise

import numpy as np

import scanflow as sf


class Network:
    def __init__(self):
        random = np.random.default_rng(1)
        sizes = (512, 1024, 1024, 10)
        self.layers = [random.normal(0, 0.05, size).astype(np.float32) for size in pairwise(sizes)]

    def predict(self, x):
        for weights in self.layers[:-1]:
            x = np.maximum(x @ weights, 0)
        return x @ self.layers[-1]


serve = sf.Workflow(name="network", type="online", nodes=[sf.Service(name="network", implementation="app.py:Network")])
app = sf.Application(name="mlperf", team="tutorials", workflows=[serve])
