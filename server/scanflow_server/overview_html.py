"""The overview page as HTML: pending approvals, labels, agents, services, runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scanflow.agent.agent_records import Action, AgentView
from scanflow.backends.run_records import RunRecord
from scanflow.backends.service_records import ServiceRecord
from scanflow_server.page_html import format_time, render


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The part of a server's state that a caller sees."""

    approvals: Sequence[Action]
    labels: int
    """How many samples wait for a label."""

    agents: Sequence[AgentView]
    services: Sequence[ServiceRecord]
    runs: Sequence[RunRecord]
    reports: Sequence[str]
    """The applications with events of agents."""


def render_overview(overview: Overview, caller: str, *, signs_in: bool = False) -> str:
    """Render the page; ``signs_in``: people sign in at a provider, and so make tokens for the command line."""
    return render(
        "overview",
        title="Overview",
        caller=caller,
        overview=overview,
        agents=[(agent.full_name, agent.state) for agent in overview.agents],
        services=[_make_service_row(service) for service in overview.services],
        runs=[_make_run_row(run) for run in sorted(overview.runs, key=lambda run: run.state != "running")],
        signs_in=signs_in,
    )


def _make_service_row(service: ServiceRecord) -> tuple[str, str, str]:
    models = dict.fromkeys(uri.removeprefix("models:/") for part in service.revisions for uri in part.models.values())
    return service.name, service.state, ", ".join(models)


def _make_run_row(run: RunRecord) -> tuple[str, str, str, str]:
    return str(run.name), f"{run.app}: {run.workflow}", run.state, format_time(run.created)
