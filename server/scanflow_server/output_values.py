"""What the server gives of steps' outputs: JSON for people and other programs, exact values for our own client.

It loads no pickle: that would run code of a step's author in the server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scanflow.backends.output_files import OutputFiles, dump_output_files
from scanflow.errors import UsageError
from scanflow.text.masking import Masker
from scanflow_server.server_context import ServerContext


def show_outputs(outputs: OutputFiles | list[OutputFiles], *, keep_nan: bool = False) -> Any:
    """Return outputs as JSON. A pickled value is a text that says what it is and how to read it.

    ``keep_nan``: NaN and infinity stay the numbers that they are, and are no texts.
    """
    if isinstance(outputs, list):
        return [show_outputs(task, keep_nan=keep_nan) for task in outputs]

    def describe(name: str) -> str:
        size = len(outputs.pickles[name])
        return f"<a Python value, {size:,} bytes pickled: read it with sf.Client(...).output(...), or scanflow output>"

    return _to_json_value(outputs.parse(describe), keep_nan)


def dump_values(context: ServerContext, run: str, step: str) -> list[bytes]:
    """Return the outputs of a step as they are sent to our own client.

    Raises:
        UsageError: they hold a secret.
    """
    outputs = context.deployer.batch.output_files(run, step)
    masker = context.deployer.load_masker(run)
    tasks = outputs if isinstance(outputs, list) else [outputs]
    if any(_holds_secret(task, masker) for task in tasks):
        raise UsageError(
            f"The outputs of the step {step!r} in the run {run!r} contain a secret of its application, or a text under "
            "a name that looks secret. A server sends no secrets. Read them on the machine with the run's home: "
            f"scanflow output {run} {step}; or have the step return the secret separately, or under another name."
        )
    return list(dump_output_files(outputs, str(context.deployer.batch.definition(run).app.app_dir)))


def _holds_secret(task: OutputFiles, masker: Masker) -> bool:
    shown = show_outputs(task)
    return bool(masker.mask_outputs(shown) != shown) or any(map(masker.occurs_in_bytes, task.pickles.values()))


def _to_json_value(value: Any, keep_nan: bool) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if keep_nan or math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {name: _to_json_value(inner, keep_nan) for name, inner in value.items()}
    if isinstance(value, list):
        return [inner if keep_nan and isinstance(inner, float) else _to_json_value(inner, keep_nan) for inner in value]
    return str(value)  # a path
