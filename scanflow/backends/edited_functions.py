"""What of finished steps was changed since: what functions do, not how they are written, and what they are given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from scanflow.app.workflow import Workflow
from scanflow.backends.used_code import digest_call

_ARGUMENTS = {"parameters", "env"}


def digest_functions(workflow: Workflow) -> dict[str, str]:
    """Return a digest of each step's function, and all that it uses of its author's own code, as far as this process
    has it."""
    calls = {node.name: node.target.call for node in workflow.steps if node.target is not None}
    functions = {step: getattr(call, "function", call) for step, call in calls.items() if call is not None}
    digests = {
        id(function): digest_call(function) for function in {id(call): call for call in functions.values()}.values()
    }
    return {step: digests[id(function)] for step, function in functions.items()}


def digest_arguments(workflow: Workflow) -> dict[str, str]:
    """Return a digest of what each step is given whatever its item: its parameters and variables."""
    given = {node.name: node.model_dump(mode="json", include=_ARGUMENTS) for node in workflow.steps}
    return {step: _digest(json.dumps(arguments, sort_keys=True)) for step, arguments in given.items()}


def list_changed_steps(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the steps that have another digest now."""
    return [step for step, digest in before.items() if step in now and now[step] != digest]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
