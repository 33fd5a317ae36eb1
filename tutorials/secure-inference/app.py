"""A service that answers two clients by name: over TLS, with their certificates."""

import numpy as np

import scanflow as sf


class Classifier:
    """Says which of ten classes a picture of 28 × 28 is, with random weights: what is shown is who may ask."""

    def __init__(self):
        self.weights = np.random.default_rng(0).normal(size=(784, 10)).astype(np.float32)

    def predict(self, x):
        return (x.reshape(len(x), -1) @ self.weights).argmax(axis=1)


digits = sf.Workflow(
    name="digits",
    type="online",
    nodes=[sf.Service(name="digits", implementation="app.py:Classifier", resources=sf.Resources(cpu=1))],
    serving=sf.Serving(clients=["CN=ada", "CN=shop.example"]),
)

app = sf.Application(name="secure-inference", team="tutorials", workflows=[digits])
