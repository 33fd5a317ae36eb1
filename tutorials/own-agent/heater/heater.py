"""A primitive of one's own: it sets the heater of a room, which is a number in a file."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from scanflow.agent.primitive_model import PrimitiveModel, PrimitiveResult


class SetHeater(PrimitiveModel):
    """Set the heater of a room to a level."""

    name = "set_heater"
    writes = ("heater",)
    reversible = True

    level: Annotated[int, Field(ge=0, le=6, description="From 0 (off) to 6.")]

    def carry_out(self, context):
        file = Path(context.get_application().application.app_dir) / "heater.json"
        before = json.loads(file.read_text())["level"] if file.exists() else 0
        inverse = context.undo("set_heater", {"workflow": self.workflow, "level": before})
        file.write_text(json.dumps({"level": self.level}))
        return PrimitiveResult({"before": before, "level": self.level}, inverse)
