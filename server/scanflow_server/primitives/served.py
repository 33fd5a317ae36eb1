"""A service as primitives find it: whose it is, how it is cut, what it serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scanflow.backends.service_records import RevisionRecord, ServiceRecord
from scanflow.errors import UsageError
from scanflow_server.primitives.action_context import ActionContext


def served_models(record: ServiceRecord) -> dict[str, str]:
    """Return, for each node that is a registered model, the version that is served."""
    return {} if record.current is None else dict(record.current.models)


def canary_of(record: ServiceRecord) -> RevisionRecord | None:
    """Return the canary version, if there is one."""
    return next((one for one in record.revisions if one.role != "current"), None)


def mine(context: ActionContext, name: str) -> ServiceRecord:
    """Return a service of the application that it is done for.

    Raises:
        NotFoundError: there is none of that name.
        UsageError: it is another application's.
    """
    record = context.deployer.service(name)
    if (record.app, record.team) != (context.app, context.team):
        raise UsageError(
            f"The service {name!r} is of the application {record.app!r} of the team {record.team!r}, and not of "
            f"{context.app!r} of {context.team!r}. An agent changes what is its own application's."
        )
    return record


def found(context: ActionContext, name: str) -> ServiceRecord | None:
    """Return it; None: there is none of that name."""
    return mine(context, name) if any(one.name == name for one in context.deployer.services()) else None


def cut_of(record: ServiceRecord) -> dict[str, Any]:
    """Return how a service is cut, as arguments; what is not limited is left out."""
    shape = record.shape
    cut = {"instances": shape.instances, "cores": shape.cores, "affinity": shape.affinity}
    return {"workflow": record.name, **given_only(cut)}


def given_only(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given of some arguments."""
    return {name: value for name, value in arguments.items() if value is not None}


def summary_of(record: ServiceRecord) -> dict[str, Any]:
    """Return what is told of a service."""
    shape = record.shape
    return {
        "service": record.name,
        "state": record.state,
        "instances": shape.instances,
        "cores": shape.cores,
        "affinity": shape.affinity,
    }
