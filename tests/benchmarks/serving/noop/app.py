"""The smallest service there is: it answers what it was asked."""

from typing import Any

import scanflow as sf


class Noop:
    blocking = False  # called on the loop, as Starlette's coroutine is

    def predict(self, X: Any) -> Any:
        return X


noop = sf.Workflow(
    name="noop",
    type="online",
    nodes=[sf.Service(name="echo", implementation="app.py:Noop")],
    serving=sf.Serving(grpc_port=0),
)

app = sf.Application(name="bench", team="bench", workflows=[noop])
