"""The agent `medic`: when it is called, it requests two primitives, its own and one of Scanflow's."""

import scanflow as sf
from scanflow.agent import primitives, sensor

from my_app_primitives import SetTimeout


@sensor(sf.on_call())
def examine(run):
    return {"run": run}


treatment = sf.Strategy(
    name="treat",
    when=examine,
    then=[
        SetTimeout("nightly", step="work", seconds=20),
        primitives.run_workflow("nightly"),
    ],
    budget=4,  # actions in an hour, at most
)
