"""A registered model with a stand-in: what is changed while it is asked."""

from typing import Any

import scanflow as sf


class Replacement:
    def predict(self, X: Any) -> Any:
        return X


changing = sf.Workflow(
    name="changing",
    type="online",
    nodes=[sf.Service(name="model", model="models:/changing/1", resources=sf.Resources(cpu=1))],
    serving=sf.Serving(grpc_port=0, backup="standby"),
)

standby = sf.Workflow(
    name="standby",
    type="online",
    nodes=[sf.Service(name="echo", implementation="app.py:Replacement", resources=sf.Resources(cpu="100m"))],
    serving=sf.Serving(grpc_port=0),
)

app = sf.Application(name="bench", team="bench", workflows=[changing, standby])
