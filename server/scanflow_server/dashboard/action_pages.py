"""The pages of actions: those that wait for a person, all others, and why one was carried out or was not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from scanflow.agent.agent_records import Action
from scanflow.errors import InvalidError
from scanflow.reports.model_history import ComparedSlice, read_slices
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageAction, PageRequest, PageView
from scanflow_server.dashboard.overview_page import build_action_state, build_action_table, list_actions, list_approvals
from scanflow_server.dashboard.page_cells import Cell, CellTable, LinkCell
from scanflow_server.dashboard.page_windows import WINDOW, TableWindow, read_choice
from scanflow_server.dashboard.subject_links import build_action_address, build_agent_address, find_address, list_links
from scanflow_server.routes import intent_routes
from scanflow_server.routes.intent_routes import Approval
from scanflow_server.scope import get_intent
from scanflow_server.store.intent_store import ActionRow

_STATES: Final = ("pending", "running", "succeeded", "failed", "reverted", "refused", "observed", "lost")
_CALLER: Final = re.compile(r"call:([^/:]+)/")
_EVENT: Final = re.compile(r"\bevent:([1-9][0-9]{0,17})$")
"""In a sample's cause: the agent that called the sensor, and the event that fired it."""

_FILTERS: Final = ("app", "team", "agent", "strategy", "target")
_MAX_REASON_LENGTH: Final = 1000


class ChainLink(NamedTuple):
    """One part of the chain from a sample to an effect, and the pages of what it names."""

    name: str
    lines: Sequence[str]
    links: Sequence[LinkCell] = ()


def load_actions(request: PageRequest) -> PageView:
    window = TableWindow.read(request)
    about: Any = {name: request.query.get(name) or None for name in _FILTERS}
    state = read_choice(request, "state", _STATES)
    waiting = list_approvals(request, limit=WINDOW, **about)
    actions = list_actions(request, limit=WINDOW + 1, offset=window.start, **about, state=state)
    return PageView.make(
        "Actions",
        request.build_command("scanflow why"),
        waiting=[] if window.start or state not in {None, "pending"} else waiting,
        table=build_action_table(actions[:WINDOW]),
        states=_STATES,
        **window.list_neighbours(len(actions)),
    )


def load_action(request: PageRequest) -> PageView:
    explanation = intent_routes.explain_row(request.context, _get_row(request), zone=request.zone)
    action = explanation.action
    evidence = action.intent.evidence
    slices = read_slices(evidence)
    return PageView.make(
        f"{action.intent.primitive} {action.intent.target}",
        f"scanflow why {action.id}",
        action=action,
        state=build_action_state(action),
        chain=build_chain(action, explanation.lines),
        slices=build_slice_table(slices, evidence.get("champion"), evidence.get("version")) if slices else None,
        choices=_list_choices(action) if request.may("approve", action.intent.team) else [],
        is_waiting=action.state == "pending" and action.decision.verdict == "approve",
        target=find_address(action.intent.target, action.intent.app),
        agent=None if action.intent.source == "person" else _get_agent_address(action),
    )


def build_chain(action: Action, lines: Sequence[str]) -> list[ChainLink]:
    """Return the parts of an explanation, each with links to what it names. Pure."""
    parts: list[tuple[str, list[str]]] = []
    for line in lines:
        name, text = line[:10].strip(), line[10:]
        if name or not parts:
            parts.append((name, []))
        parts[-1][1].append(text)
    links = _build_links(action)
    return [ChainLink(name, texts, links.get(name, ())) for name, texts in parts]


def _build_links(action: Action) -> dict[str, list[LinkCell]]:
    intent, app, agent = action.intent, action.intent.app, _get_agent_address(action)
    links: dict[str, list[LinkCell]] = {
        "evidence": list_links(app, intent.evidence),
        "intent": list(dict.fromkeys([*_link_target(action), *list_links(app, intent.arguments)])),
        "decision": [_link_event(action, "its events", action.id)],
        "effect": list_links(app, action.result, None if action.inverse is None else action.inverse.arguments),
    }
    if intent.source == "agent":
        links["rule"] = [LinkCell(f"strategy {intent.strategy}", f"{agent}#strategies")]
    if (sample := intent.sample) is not None:
        links["sample"] = [
            _link_event(action, "the sample's event", sample.id),
            LinkCell(f"agent {sample.agent}", agent),
        ]
        links["trigger"] = [LinkCell(f"sensor {sample.sensor}", f"{agent}#sensors")]
        if match := _CALLER.match(sample.cause):
            links["trigger"].append(LinkCell(f"agent {match[1]}", build_agent_address(app, match[1])))
        if match := _EVENT.search(sample.cause):
            links["trigger"].append(LinkCell(f"event {match[1]}", f"/events/{match[1]}"))
    if (winner := action.decision.winner) is not None:
        links["decision"].append(LinkCell(f"action {winner}", build_action_address(winner)))
    return links


def _get_agent_address(action: Action) -> str:
    return build_agent_address(action.intent.app, action.intent.agent)


def _link_event(action: Action, text: str, words: str) -> LinkCell:
    return LinkCell(text, f"/events?{urlencode({'app': action.intent.app, 'text': words})}")


def _link_target(action: Action) -> list[LinkCell]:
    address = find_address(action.intent.target, action.intent.app)
    return [] if address is None else [LinkCell(action.intent.target.replace("/", " ", 1), address)]


def build_slice_table(slices: Sequence[ComparedSlice], old: object, new: object) -> CellTable:
    """Return the comparison of two versions, slice by slice. Pure."""
    rows: list[list[Cell]] = [
        [
            part.name,
            f"{part.n:,}",
            f"{100 * part.champion:.1f} %",
            f"{100 * part.challenger:.1f} %",
            f"{100 * (part.challenger - part.champion):+.1f} points",
            f"{100 * part.low:+.1f} to {100 * part.high:+.1f}",
            None if part.traffic is None else f"{100 * part.traffic:.0f} %",
        ]
        for part in slices
    ]
    names = ("version in use" if old is None else f"version {old}", "challenger" if new is None else f"version {new}")
    return CellTable(("slice", "points", *names, "gain", "interval", "traffic"), rows)


def _list_choices(action: Action) -> list[tuple[str, str]]:
    """Return what a person may do with an action: the last part of an address, and its text."""
    has_begun, is_allowed = action.began is not None, action.decision.verdict in {"act", "queue", "duplicate"}
    choices = {
        ("approve", "Approve"): not is_allowed and not has_begun and action.state in {"pending", "refused", "observed"},
        ("refuse", "Refuse"): action.state == "pending" and not has_begun,
        ("revert", "Revert"): action.state == "succeeded" and action.inverse is not None and not action.reverted_by,
    }
    return [choice for choice, is_open in choices.items() if is_open]


def _get_row(request: PageRequest) -> ActionRow:
    return get_intent(request.engine, request.caller, request.parameters["id"])


def read_reason(form: Mapping[str, str]) -> str:
    if len(reason := form.get("reason", "").strip()) > _MAX_REASON_LENGTH:
        raise InvalidError(f"The reason is longer than {_MAX_REASON_LENGTH:,} characters. Give a shorter one.")
    return reason


def _decide(change: Callable[..., Action]) -> Callable[[PageRequest, Mapping[str, str]], str]:
    """Return what performs a route's change of an action, for a caller who may."""

    def perform(request: PageRequest, form: Mapping[str, str]) -> str:
        row, reason = _get_row(request), read_reason(form)
        request.caller.check("approve", row.intent.team)
        change(request.context, request.engine, request.caller, row, Approval(reason=reason))
        return build_action_address(row.id)

    return perform


SERVED: Final = (
    DashboardPage(path="/actions", template="actions", load=load_actions),
    DashboardPage(path="/actions/{id}", template="action", load=load_action),
    PageAction(path="/actions/{id}/approve", perform=_decide(intent_routes.approve)),
    PageAction(path="/actions/{id}/refuse", perform=_decide(intent_routes.refuse)),
    PageAction(path="/actions/{id}/revert", perform=_decide(intent_routes.revert)),
)
