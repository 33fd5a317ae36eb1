"""A primitive: what an agent may do, carried out by the server. pyproject.toml tells the server where it is."""

from typing import Annotated

from pydantic import Field
from scanflow.agent.primitive_model import PrimitiveModel, PrimitiveResult


class SetTimeout(PrimitiveModel):
    """Set how long one attempt of a step may take, from the next run on."""

    name = "set_timeout"
    writes = ("timeout",)
    reversible = True

    step: Annotated[str, Field(description="The step's name.")]
    seconds: Annotated[float, Field(gt=0, description="The longest attempt.")]

    def carry_out(self, context):
        before = context.workflow(self.workflow)[1].node(self.step).timeout_s
        undo = {"workflow": self.workflow, "step": self.step, "seconds": before}
        inverse = context.undo(self.name, undo) if before else None

        def change(workflow):
            nodes = [
                node.replace(timeout=self.seconds) if node.name == self.step else node
                for node in workflow.nodes
            ]
            return workflow.replace(nodes=nodes)

        context.update_workflow(self.workflow, change)
        return PrimitiveResult({"before": before, "after": self.seconds}, inverse)
