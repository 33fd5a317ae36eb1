"""The records of the knowledge base: frozen, the same from every adapter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import Field

from scanflow.app.model import Model

RunStatus = Literal["running", "finished", "failed"]

LATEST = "latest"
"""Refers to the version with the highest number. It cannot be an alias."""


class SavedVersion(Model):
    """One save of an application's metadata or of its artifacts. Every save is kept."""

    version: str
    """Identifies this save permanently; later saves do not change it. (In MLflow: the id of the run that holds it.)"""

    app: str
    team: str
    saved_at: datetime
    uri: str
    """The address of its files: ``runs:/<version>/...``, which MLflow resolves too."""


class ModelVersion(Model):
    """One version of a registered model."""

    name: str
    version: int = Field(ge=1)
    aliases: tuple[str, ...] = ()
    """Sorted; an alias names one version of a model at a time."""

    tags: Mapping[str, str] = Field(default_factory=dict)
    run_id: str | None = None
    """The run that created it, if known."""

    uri: str
    """``models:/<name>/<version>``, which MLflow resolves too."""

    created_at: datetime


class TrackedRun(Model):
    """One run with its inputs and results. A metric that was logged repeatedly shows its last value; one that is no
    number, as of a training that diverged, is left out."""

    run_id: str
    environment: str
    """``scanflow-<app>-<team>``: the experiment, in MLflow's words."""

    name: str
    status: RunStatus
    params: Mapping[str, str] = Field(default_factory=dict)
    metrics: Mapping[str, float] = Field(default_factory=dict)
    tags: Mapping[str, str] = Field(default_factory=dict)
    parent: str | None = None
    started_at: datetime
    ended_at: datetime | None = None
