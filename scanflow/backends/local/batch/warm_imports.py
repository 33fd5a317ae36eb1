"""Imports that a function step's process needs before the user's code: the warm shim imports them once, then forks."""

from __future__ import annotations

import cloudpickle

from scanflow.app import application, steps, workflow
from scanflow.application_loading import load_function
from scanflow.backends import values
from scanflow.backends.function_process import main

__all__ = ["application", "cloudpickle", "load_function", "main", "steps", "values", "workflow"]
