"""Arguments of operation primitives, checked: what each function of :mod:`scanflow.agent.primitives` asks of them.

All of it is pure, and raises ``InvalidError`` that says what is wrong and what to write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scanflow.agent.actions import Kind
from scanflow.app.parameters import plain_mapping
from scanflow.app.resources import Resources
from scanflow.errors import InvalidError
from scanflow.names import check_name

_MODEL = re.compile(r"models:/[^/@\s]+[/@][^/@\s]+")


def workflow_target(name: str) -> str:
    """Return a batch workflow as a target."""
    return f"workflow/{check_name(name, 'workflow')}"


def service_target(name: str) -> str:
    """Return an online workflow as a target."""
    return f"service/{check_name(name, 'workflow')}"


def target_of_kind(name: str, kind: Kind) -> str:
    """Return a workflow of either kind as a target."""
    return service_target(name) if kind == "online" else workflow_target(name)


def executor_field(executor: str, field: str) -> str:
    """Return a field of one executor."""
    return f"{check_name(executor, 'executor')}.{field}"


def named(value: str, what: str) -> str:
    """Return a name that is not empty."""
    if not value.strip():
        raise InvalidError(f"The {what} has no name. Write one, or '@latest' for the newest.")
    return value


def model_address(address: str) -> str:
    """Return an address in the registry."""
    if not _MODEL.fullmatch(address):
        name = address.removeprefix("models:").strip("/@ ") or "name"
        raise InvalidError(
            f"The model {address!r} is not an address in the registry. Write 'models:/{name}@champion' or "
            f"'models:/{name}/1'."
        )
    return address


def both_spellings(parameters: Mapping[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parameters of both spellings, or None for none."""
    if doubled := sorted(set(parameters or {}) & set(more)):
        raise InvalidError(f"The parameter {doubled[0]!r} is given twice. Remove one.")
    both: dict[str, Any] = plain_mapping({**(parameters or {}), **more})
    return both or None


def resources_given(who: str, cpu: float | str | None, memory: str | int | None, gpu: int | None) -> dict[str, Any]:
    """Return the amounts that are given, as they are written."""
    given: dict[str, Any] = {
        name: value for name, value in (("cpu", cpu), ("memory", memory), ("gpu", gpu)) if value is not None
    }
    if not given:
        raise InvalidError(f"{who} changes nothing. Say cpu=, memory= or gpu=.")
    checked = Resources(**given)
    return {name: getattr(checked, name) for name in given}


def cut_fields(instances: int | None, cores: float | None, affinity: str | None) -> list[str]:
    """Return the fields that a cut writes."""
    said = (("replicas", instances), ("resource", cores), ("affinity", affinity))
    return [field for field, value in said if value is not None]


def instance_count(instances: int | None) -> int | None:
    """Return a number of instances."""
    if instances is not None and instances < 0:
        raise InvalidError(f"instances={instances} is no number of copies. Write 0 or more.")
    return instances


def above_zero(name: str, value: float | None) -> float | None:
    """Return a number above zero."""
    if value is not None and value <= 0:
        raise InvalidError(f"{name}={value} is not above zero.")
    return value
