"""What a step left, and how one thing of it is found by its name: the same for a later step and for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scanflow.errors import NotFoundError, did_you_mean

RESULT = "result"
"""The output that holds what a step's function returned."""


def pick_output(outputs: Mapping[str, Any], name: str, step: str) -> Any:
    """Return a named output, or the key of that name of a returned mapping.

    Raises:
        NotFoundError: the step left no such output.
    """
    if name in outputs:
        return outputs[name]
    result = outputs.get(RESULT)
    if isinstance(result, Mapping) and name in result:
        return result[name]
    known = [key for key in outputs if key != RESULT] + (list(result) if isinstance(result, Mapping) else [])
    advice = did_you_mean(name, [str(key) for key in known]) or " A script names outputs with sf.output(name, value)."
    raise NotFoundError(f"The step {step!r} left no output {name!r}.{advice}")
