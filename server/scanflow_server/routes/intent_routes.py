"""Routes of intents: submit, list, explain, approve, refuse and revert."""

from __future__ import annotations

import re
from datetime import UTC, tzinfo
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection

from scanflow.agent.agent_records import Action, ActionExplanation, ActionState, Decision, Intent, Verdict
from scanflow.app.parameters import refuse_mask
from scanflow.drift.promotion import format_decision
from scanflow.errors import InvalidError
from scanflow_server.api_route import ApiRoute
from scanflow_server.arbiter.started_runs import refresh_started_runs
from scanflow_server.arbiter.why import explain_action
from scanflow_server.auth import Approver, Proposer, Reader
from scanflow_server.bodies import Named, Text, check_text, check_time
from scanflow_server.request_problems import PROBLEMS
from scanflow_server.response_masking import Mask, build_text_mask, mask_action
from scanflow_server.scope import EngineDep, OwnIntent, restrict_team
from scanflow_server.server_context import ContextDep, ServerContext
from scanflow_server.store import event_store, intent_store
from scanflow_server.store.intent_store import ActionRow
from scanflow_server.store.secret_store import cache_maskers

router = APIRouter(prefix="/intents", tags=["intents"], responses=PROBLEMS, route_class=ApiRoute)

_MAX_LENGTH = 128
_MAX_KEY_LENGTH = 1024
_HIGHEST = 1_000_000
_MAX_NAMED = 16
_MAX_EVALUATIONS = 10_000
_ID = re.compile(r"[!-.0-~]{1,128}")


class Approval(BaseModel):
    """The reason why a person approves, refuses or reverts. The request's token identifies the person."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Text = ""


@router.post("")
def create_intent(engine: EngineDep, caller: Proposer, intent: Intent) -> Decision:
    """Submit an intent, and return the decision on it. A repeated key gets the first decision again.

    What it may do is what its strategy may, as stored when its agent was deployed. An intent that exceeds it, or of an
    agent or a strategy that is not stored, waits for approval. An agent's own token speaks for that agent alone.
    """
    _check(intent)
    caller.check("propose", intent.team)
    caller.check_agent(intent.app, intent.agent)
    if caller.agent is not None and not intent.key.startswith(f"{intent.agent}/"):
        caller.check_agent(intent.app, intent.key.partition("/")[0])
    if intent.source != "agent":
        raise InvalidError("Only agents send intents. People request a change of the service or the run itself.")
    return engine.submit(intent)


@router.get("", response_model=list[Action])
def intents(
    context: ContextDep,
    caller: Reader,
    state: Annotated[list[ActionState] | None, Query(max_length=_MAX_NAMED)] = None,
    verdict: Annotated[list[Verdict] | None, Query(max_length=_MAX_NAMED)] = None,
    app: Named = None,
    team: Named = None,
    agent: Named = None,
    strategy: Named = None,
    primitive: Named = None,
    target: Named = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List actions and their status, the newest first. Those that wait for approval: ``verdict=approve``.

    ``state`` and ``verdict`` may be given several times, for any of those: what was acted on or may be, and not what
    was refused, is ``verdict=act&verdict=queue&verdict=approve``.
    """
    with context.store.read() as connection:
        text = intent_store.dump_actions(
            connection,
            mask=build_text_mask(cache_maskers(connection)),
            state=state,
            verdict=verdict,
            app=app,
            team=restrict_team(caller, team),
            agent=agent,
            strategy=strategy,
            primitive=primitive,
            target=target,
            limit=limit,
        )
    return Response(text, media_type="application/json")


@router.get("/{id}")
def intent(context: ContextDep, _caller: Reader, row: OwnIntent) -> Action:
    """Show an action and its state."""
    return _mask(context, row.action)[0]


@router.get("/{id}/why", name="why")
def explain(context: ContextDep, _caller: Reader, row: OwnIntent) -> ActionExplanation:
    """Explain why an action was carried out, or was not."""
    return explain_row(context, row)


def explain_row(context: ServerContext, row: ActionRow, *, zone: tzinfo = UTC) -> ActionExplanation:
    """Explain an action with its secrets masked; times are in ``zone``."""
    action, mask = _mask(context, row.action)
    with context.store.read() as connection:
        trail = [
            *((at, str(mask(text))) for at, text in intent_store.load_trail(connection, row.id)),
            *_list_evaluations(connection, action),
        ]
    (action,) = refresh_started_runs(context, [action])
    return ActionExplanation(lines=explain_action(action, trail, zone=zone), action=action)


@router.post("/{id}/approve")
def approve(context: ContextDep, engine: EngineDep, caller: Approver, row: OwnIntent, approval: Approval) -> Action:
    """Approve an action: it is carried out as soon as nothing else conflicts with it."""
    return _mask(context, engine.approve(row.id, by=caller.name, reason=approval.reason))[0]


@router.post("/{id}/refuse")
def refuse(context: ContextDep, engine: EngineDep, caller: Approver, row: OwnIntent, approval: Approval) -> Action:
    """Refuse an action."""
    return _mask(context, engine.intents.refuse(row.id, by=caller.name, reason=approval.reason))[0]


@router.post("/{id}/revert")
def revert(context: ContextDep, engine: EngineDep, caller: Approver, row: OwnIntent, approval: Approval) -> Action:
    """Revert an action, by its inverse."""
    return _mask(context, engine.revert(row.id, by=caller.name, reason=approval.reason))[0]


def _mask(context: ServerContext, action: Action) -> tuple[Action, Mask]:
    with context.store.read() as connection:
        return mask_action(action, cache_maskers(connection))


def _list_evaluations(connection: Connection, action: Action) -> list[tuple[float, str]]:
    """Return agents' evaluations of the models of an action's run, and the results of its search for a service."""
    run = action.result.get("run") if isinstance(action.result, dict) else None
    if run is None:
        return []
    intent = action.intent
    types = ("model.judged", "service.tuned")
    about: Any = {"type": types, "app": intent.app, "team": intent.team}
    own = event_store.list_evaluations(connection, str(run), **about, limit=_MAX_EVALUATIONS)
    return [
        (event.at, format_decision(evidence))
        for event in own
        if isinstance(evidence := event.data.get("evidence"), dict)
    ]


def _check(intent: Intent) -> None:
    check_text(intent.model_dump(mode="json"))
    check_time("The intent's time", intent.at)
    check_time("The sample's time", None if intent.sample is None else intent.sample.at)
    refuse_mask(intent.arguments)
    if not _ID.fullmatch(intent.id):
        raise InvalidError(f"The id {intent.id!r:.60} cannot be part of a URL. Use letters, digits and -._:@+=~.")
    texts = {name: getattr(intent, name) for name in ("app", "team", "agent", "strategy", "target", "key")}
    for name, text in [*texts.items(), *(("field", field) for field in intent.fields)]:
        longest = _MAX_KEY_LENGTH if name == "key" else _MAX_LENGTH
        if not 1 <= len(text) <= longest:
            raise InvalidError(f"The {name} {text!r:.60} must have 1 to {longest} characters.")
    if abs(intent.priority) > _HIGHEST or abs(intent.budget or 0) > _HIGHEST:
        raise InvalidError(f"The priority and the budget must be between {-_HIGHEST} and {_HIGHEST}.")
