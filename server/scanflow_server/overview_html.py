"""The overview page as HTML: pending approvals, labels, agents, services, runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from scanflow.agent.agent_records import Action, AgentView
from scanflow.app.quantities import format_count
from scanflow.backends.run_records import RunRecord
from scanflow.backends.service_records import ServiceRecord
from scanflow.drift.promotion import format_decision
from scanflow_server.page_html import COMMAND_LINE_LINK, format_time, format_value, render_header, render_page


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
    token = f"<h2>Command line</h2><p>{COMMAND_LINE_LINK}</p>" if signs_in else ""
    running = [run for run in overview.runs if run.state == "running"]
    ended = [run for run in overview.runs if run.state != "running"]
    return render_page(
        "Overview",
        f"""{render_header("Scanflow", "/", caller)}<main>
<h2>Waiting for a person</h2>{_render_waiting(overview)}
<h2>Agents</h2>{_render_table(("agent", "state"), ((agent.full_name, agent.state) for agent in overview.agents))}
<h2>Services</h2>{_render_table(("service", "state", "models"), map(_make_service_row, overview.services))}
<h2>Runs</h2>{_render_table(("run", "workflow", "state", "started"), map(_make_run_row, [*running, *ended]))}
<h2>Reports</h2>{_render_reports(overview.reports)}{token}
</main>""",
    )


def _render_waiting(overview: Overview) -> str:
    parts = [_render_approval(approval) for approval in overview.approvals]
    if overview.labels:
        parts.append(f'<p><a href="/labels">{format_count(overview.labels, "sample")} to label</a></p>')
    return "".join(parts) or "<p>Nothing is waiting.</p>"


def _render_approval(action: Action) -> str:
    reason = format_decision(action.intent.evidence) if action.intent.evidence else action.decision.reason
    return (
        f"<p><strong>{format_value(action.intent.agent)}</strong> requests {format_value(action.intent.primitive)} on "
        f"{format_value(action.intent.target)}: {escape(reason)}<br>"
        f"<code>scanflow approve {format_value(action.id)}</code></p>"
    )


def _make_service_row(service: ServiceRecord) -> tuple[str, str, str]:
    models = dict.fromkeys(uri.removeprefix("models:/") for part in service.revisions for uri in part.models.values())
    return service.name, service.state, ", ".join(models)


def _make_run_row(run: RunRecord) -> tuple[str, str, str, str]:
    return str(run.name), f"{run.app}: {run.workflow}", run.state, format_time(run.created)


def _render_reports(apps: Sequence[str]) -> str:
    links = ", ".join(f'<a href="/reports/{quote(app, safe="")}">{escape(app)}</a>' for app in apps)
    return f"<p>What the agents observed and did: {links}</p>" if apps else "<p>No agent has reported anything yet.</p>"


def _render_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = ["".join(f"<td>{format_value(cell)}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{column}</th>" for column in columns)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>" if cells else "<p>None.</p>"
