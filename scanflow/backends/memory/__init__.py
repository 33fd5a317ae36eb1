"""A backend that needs no disk and starts no process: for tests of applications, and to show what a backend must do."""

from __future__ import annotations

from scanflow.backends.memory.memory import Memory

__all__ = ["Memory"]
