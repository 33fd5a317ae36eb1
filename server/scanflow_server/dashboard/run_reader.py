"""Reads what pages show of one run: its record, its definition, and what its steps returned, with secrets masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import RunRecord
from scanflow.deployer.masked_deployer import build_masker
from scanflow.errors import NotFoundError
from scanflow.text.masking import Masker
from scanflow_server import run_requests
from scanflow_server.dashboard.page import PageRequest
from scanflow_server.dashboard.page_cells import CellTable
from scanflow_server.dashboard.page_html import to_json
from scanflow_server.output_values import show_outputs

_MAX_PARAMETERS = 200
_MAX_OUTPUT_BYTES = 4 * 2**20
"""How much of a step's outputs is read for a page; more is said to be more."""


def get_run(request: PageRequest, name: str | None = None) -> RunRecord:
    """Return the run of a page's address, or another; NotFoundError: there is none, or it is another team's."""
    name, team = name or request.parameters["run"], request.caller.team
    if team is None:
        return run_requests.show_run(request.context, name)
    return run_requests.show_team_run(request.context, name, team=team)


class RunReader:
    """Reads one run, each part once and only if it is asked for."""

    def __init__(self, request: PageRequest, name: str | None = None) -> None:
        self.request, self.run = request, get_run(request, name)

    @cached_property
    def definition(self) -> RunDefinition | None:
        """None: it is requested, and not entered yet."""
        with suppress(NotFoundError):
            return self.request.context.deployer.batch.definition(self.run.name)
        return None

    @cached_property
    def masker(self) -> Masker:
        return Masker() if self.definition is None else build_masker(self.definition)

    @property
    def parents(self) -> Mapping[str, Sequence[str]] | None:
        return None if self.definition is None else self.definition.workflow.parents

    @property
    def steps(self) -> list[str]:
        return [] if self.definition is None else [node.name for node in self.definition.workflow.steps]

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The parameters of all steps as JSON, by their full names."""
        if self.definition is None:
            return {}
        nodes = [
            node.model_dump(mode="json", include={"name", "parameters"}) for node in self.definition.workflow.nodes
        ]
        named = {node["name"]: self.masker.mask(node.get("parameters") or {}) for node in nodes}
        return {f"{step}.{name}": to_json(value) for step, own in named.items() for name, value in own.items()}

    def build_parameter_table(self) -> CellTable:
        """Return the parameters, those that the run changed first."""
        changed = {} if self.definition is None else self.definition.parameters
        rows = [
            (name, value, "changed" if {name, name.partition(".")[2]} & changed.keys() else None)
            for name, value in self.parameters.items()
        ]
        rows.sort(key=lambda row: row[2] is None)
        return CellTable(("parameter", "value", ""), rows[:_MAX_PARAMETERS], "No step has a parameter.")

    def read_outputs(self, task: str) -> Mapping[str, Any]:
        """Return the outputs of a task, or of a step by their tasks; see :func:`show_outputs`.

        Raises:
            NotFoundError: it has none.
            TooLargeError: they are too large for a page.
        """
        batch = self.request.context.deployer.batch
        shown = show_outputs(batch.output_files(self.run.name, task, max_bytes=_MAX_OUTPUT_BYTES))
        masked = self.masker.mask_outputs(shown)
        return masked if isinstance(masked, Mapping) else {str(at): value for at, value in enumerate(masked)}
