"""The imports of a function step's process before the user's own code: imported once by the warm shim, then forked."""

from __future__ import annotations

import cloudpickle

from scanflow.app import application, steps, workflow
from scanflow.backends import values
from scanflow.backends.function_process import main
from scanflow.loading import load_function

__all__ = ["application", "cloudpickle", "load_function", "main", "steps", "values", "workflow"]
