"""A backend without disk and processes: for tests of applications, and as the simplest example of a backend."""

from __future__ import annotations

from scanflow.backends.memory.memory_backend import Memory

__all__ = ["Memory"]
