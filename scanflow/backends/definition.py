"""Stored definitions of runs: enough to resume a run in another process, or in a pod."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from scanflow.app.application_files import dump_json, load_json
from scanflow.app.plain_secrets import list_inherited_sources
from scanflow.app.workflow import Workflow
from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import TaskRecord
from scanflow.backends.used_code import digest_call
from scanflow.names import RunName

_COMPARED = {"functions": "its code or what that uses", "arguments": "its parameters or variables"}
_ARGUMENTS = {"parameters", "env"}


class SavedDefinition(BaseModel):
    """A run's definition, serialized."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    app: str
    """The application as JSON."""

    workflow: str
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    functions: Mapping[str, str] = Field(default_factory=dict)
    """Digests of the functions that steps were run with, as far as they are known."""

    arguments: Mapping[str, str] = Field(default_factory=dict)
    """Digests of what steps were given."""

    inherited: tuple[str, ...] = ()
    """References to secrets in variables, of the whole application."""

    spun: str | None = None
    """The step or task of a spin; other outputs are taken from another run."""

    @classmethod
    def from_definition(cls, definition: RunDefinition) -> Self:
        text = dump_json(definition.app.replace(workflows=(definition.workflow,), agents=()))
        return cls(
            app=text,
            workflow=definition.workflow.name,
            parameters=definition.parameters,
            functions={**definition.functions, **digest_functions(definition.workflow)},
            arguments=digest_arguments(definition.workflow),
            inherited=tuple(sorted({*definition.inherited, *list_inherited_sources(definition.app)})),
            spun=definition.step,
        )

    def read(self, source: str | None) -> RunDefinition:
        app = load_json(self.app)
        path = None if source is None else Path(source)
        return RunDefinition(
            app,
            app.workflow(self.workflow),
            self.parameters,
            path,
            self.spun,
            functions=self.functions,
            inherited=self.inherited,
        )


def enter_run(
    journal: Journal,
    definition: RunDefinition,
    *,
    parent: Path,
    rng: random.Random,
    name: RunName | None = None,
    tasks: Sequence[TaskRecord] = (),
    created: float | None = None,
    saved: SavedDefinition | None = None,
) -> JournalRun:
    """Enter a new run into the journal, with its initial tasks; its folder will be in ``parent``.

    ``created``: when it was, in seconds since the epoch. None: now. ``saved``: the definition serialized, if it is.

    Raises:
        InvalidError: another run has that name.
    """
    return journal.create_run(
        app=definition.app.name,
        team=definition.app.team,
        workflow=definition.workflow.name,
        parent=parent,
        source=None if definition.source is None else str(definition.source),
        definition=(saved or SavedDefinition.from_definition(definition)).model_dump_json(),
        rng=rng,
        name=name,
        tasks=tasks,
        created=created,
    )


def redefine_run(
    journal: Journal,
    run: JournalRun,
    definition: RunDefinition,
    kept: Iterable[TaskRecord],
    saved: SavedDefinition | None = None,
) -> list[tuple[str, str]]:
    """Replace a run's definition in the journal; return the steps of kept tasks that are something else now, each with
    what of it was changed. ``saved``: the definition serialized, if it is."""
    saved = saved or SavedDefinition.from_definition(definition)
    if saved.model_dump_json() == run.definition:
        return []
    before = SavedDefinition.model_validate_json(run.definition)
    steps, edited, digests = {task.step for task in kept}, [], {}
    for field, what in _COMPARED.items():
        was, now = getattr(before, field), getattr(saved, field)
        changed = [step for step in list_changed_steps(was, now) if step in steps]
        digests[field] = {**now, **{step: was[step] for step in changed}}  # of what their outputs were made
        edited += [(step, what) for step in changed]
    journal.redefine(run, saved.model_copy(update=digests).model_dump_json())
    return edited


def describe_edited(edited: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return each step with all of it that was changed, as text."""
    steps: dict[str, list[str]] = {}
    for step, what in edited:
        steps.setdefault(step, []).append(what)
    return tuple(f"{step} ({'; '.join(parts)})" for step, parts in steps.items())


def read_definition(run: JournalRun) -> RunDefinition:
    return _read_definition(run.definition, run.record.source)


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


@lru_cache(maxsize=4)
def _read_definition(text: str, source: str | None) -> RunDefinition:
    """Kept, as a run of a thousand steps takes 0.2 s to read, for each output that is asked for."""
    return SavedDefinition.model_validate_json(text).read(source)
