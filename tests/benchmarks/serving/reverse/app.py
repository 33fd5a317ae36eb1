"""Byte reversal, the second workload of the study of serverless platforms: as fast as bytes come and go."""

from typing import Any

import scanflow as sf


class Reverse:
    blocking = False  # called on the loop, as Starlette's coroutine is

    def predict(self, X: Any) -> Any:
        return X[::-1]


reverse = sf.Workflow(
    name="reverse",
    type="online",
    nodes=[sf.Service(name="bytes", implementation="app.py:Reverse")],
    serving=sf.Serving(grpc_port=0),
)

app = sf.Application(name="bench", team="bench", workflows=[reverse])
