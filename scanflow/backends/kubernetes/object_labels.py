"""Names, labels and selectors of an application's objects. Pure."""

from __future__ import annotations

import hashlib
from typing import Final

from scanflow.names import MAX_NAME, format_environment_name

MANAGER: Final = "scanflow"
"""The field manager of the objects that scanflow applies, and the value of ``app.kubernetes.io/managed-by``."""

APP: Final = "scanflow.dev/app"
TEAM: Final = "scanflow.dev/team"
WORKFLOW: Final = "scanflow.dev/workflow"
RUN: Final = "scanflow.dev/run"
STEP: Final = "scanflow.dev/step"
TASK: Final = "scanflow.dev/task"
SERVICE: Final = "scanflow.dev/service"
REVISION: Final = "scanflow.dev/revision"
AGENT: Final = "scanflow.dev/agent"

MANAGED_SELECTOR: Final = f"app.kubernetes.io/managed-by={MANAGER}"
"""Selects all objects that scanflow created."""


def derive_namespace(app: str, team: str) -> str:
    """Return the namespace of an application's environment.

    ``scanflow-<app>-<team>``; where the app's or the team's name has a ``-``, so that two pairs could share it, six
    digits of the pair's hash follow.
    """
    plain = format_environment_name(app, team)
    return plain if "-" not in app and "-" not in team else append_hash(plain, app, team)


def append_hash(name: str, *parts: str) -> str:
    """Return a name with six digits of the hash of ``parts``, within a label's length."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:6]
    return f"{name[: MAX_NAME - 7].rstrip('-')}-{digest}"


def build_labels(app: str, team: str, **more: str) -> dict[str, str]:
    """Return the labels of an application's object; ``more`` are scanflow's own, as ``run="calm-otter-417"``."""
    return {
        "app.kubernetes.io/managed-by": MANAGER,
        "app.kubernetes.io/part-of": app,
        APP: app,
        TEAM: team,
        **{f"scanflow.dev/{name}": value for name, value in more.items()},
    }


def build_selector(**labels: str) -> str:
    """Return the selector of the objects with those labels: ``selector(run="calm-otter-417")``."""
    return ",".join([MANAGED_SELECTOR, *(f"scanflow.dev/{name}={value}" for name, value in labels.items())])
