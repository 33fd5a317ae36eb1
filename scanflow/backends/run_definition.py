"""What a run is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow


@dataclass(frozen=True, slots=True, eq=False)
class RunDefinition:
    """The definition of a run. One is equal only to itself, so that what is made of it can be kept."""

    app: Application
    workflow: Workflow
    """The workflow to run, with ``parameters`` applied."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The changed parameters; stored with the run."""

    source: Path | None = None
    """The application's file; stored with the run."""

    step: str | None = None
    """The step, or task (``train.3``), of a spin. None: the whole workflow is run."""

    past: str | None = None
    """The run of a spin's inputs."""

    functions: Mapping[str, str] = field(default_factory=dict)
    """Digests of the steps' functions, where another process has the functions themselves."""

    inherited: tuple[str, ...] = ()
    """References to secrets in variables, of parts of the application that are not stored with the run: steps inherit
    the variables."""
