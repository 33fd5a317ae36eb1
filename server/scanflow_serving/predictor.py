"""What an opened registered model can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from scanflow_serving.signature import NodeSignature


class Predictor(Protocol):
    """An opened registered model."""

    platform: str
    signature: NodeSignature
    notes: tuple[str, ...]
    """What a person should know of it, and what to do."""

    input_errors: tuple[type[RuntimeError], ...]
    """The exceptions by which it refuses an input, and no subclass of them; others may be faults of its own."""

    def predict(self, value: Any, names: Any = (), parameters: Mapping[str, Any] | None = None, /) -> Any:
        """Return the model's answer; ProblemError (4xx) names what is wrong with the input."""
