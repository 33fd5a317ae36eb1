"""The first page, as HTML: what waits for a person, and what runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from scanflow.agent.records import Action, AgentView
from scanflow.app.quantities import counted
from scanflow.backends.records import RunRecord
from scanflow.backends.service_records import ServiceRecord
from scanflow.drift.promotion import sentence
from scanflow_server.page_html import header, moment_of, page, text_of


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What a caller sees of a server."""

    approvals: Sequence[Action]
    labels: int
    """How many samples wait for a label."""

    agents: Sequence[AgentView]
    services: Sequence[ServiceRecord]
    runs: Sequence[RunRecord]
    reports: Sequence[str]
    """The applications whose agents have told of something."""


def overview(found: Overview, caller: str) -> str:
    running = [one for one in found.runs if one.state == "running"]
    ended = [one for one in found.runs if one.state != "running"]
    return page(
        "What runs",
        f"""{header("Scanflow", "/", caller)}<main>
<h2>Waits for a person</h2>{_waiting(found)}
<h2>Agents</h2>{_table(("agent", "state"), ((one.full_name, one.state) for one in found.agents))}
<h2>Services</h2>{_table(("service", "state", "models"), map(_service, found.services))}
<h2>Runs</h2>{_table(("run", "workflow", "state", "begun"), map(_run, [*running, *ended]))}
<h2>Reports</h2>{_reports(found.reports)}
</main>""",
    )


def _waiting(found: Overview) -> str:
    parts = [_approval(one) for one in found.approvals]
    if found.labels:
        parts.append(f'<p><a href="/labels">{counted(found.labels, "sample")} to label</a></p>')
    return "".join(parts) or "<p>Nothing does.</p>"


def _approval(one: Action) -> str:
    said = sentence(one.intent.evidence) if one.intent.evidence else one.decision.reason
    return (
        f"<p><strong>{text_of(one.intent.agent)}</strong> asks for {text_of(one.intent.primitive)} on "
        f"{text_of(one.intent.target)}: {escape(said)}<br><code>scanflow approve {text_of(one.id)}</code></p>"
    )


def _service(one: ServiceRecord) -> tuple[str, str, str]:
    models = dict.fromkeys(uri.removeprefix("models:/") for part in one.revisions for uri in part.models.values())
    return one.name, one.state, ", ".join(models)


def _run(one: RunRecord) -> tuple[str, str, str, str]:
    return str(one.name), f"{one.app}: {one.workflow}", one.state, moment_of(one.created)


def _reports(apps: Sequence[str]) -> str:
    links = ", ".join(f'<a href="/reports/{quote(app, safe="")}">{escape(app)}</a>' for app in apps)
    return f"<p>What the agents saw and did: {links}</p>" if apps else "<p>No agent has told of anything yet.</p>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = ["".join(f"<td>{text_of(cell)}</td>" for cell in row) for row in rows]
    head = "".join(f"<th>{column}</th>" for column in columns)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>" if cells else "<p>None.</p>"
