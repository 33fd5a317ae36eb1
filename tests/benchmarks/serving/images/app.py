"""The image workload as a service: a PNG in the body, a PNG in the answer."""

from typing import Any

import numpy as np
from transform import transform

import scanflow as sf


class Transform:
    def predict(self, X: Any) -> Any:
        return np.frombuffer(transform(X.tobytes()), dtype=np.uint8)


images = sf.Workflow(
    name="images",
    type="online",
    nodes=[sf.Service(name="transform", implementation="app.py:Transform", resources=sf.Resources(cpu=1))],
    serving=sf.Serving(grpc_port=0),
)

app = sf.Application(name="bench", team="bench", workflows=[images])
