"""The label queue: what agents picked to be labelled, and the labels that people give."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from scanflow.agent.records import JSON
from scanflow.errors import InvalidError
from scanflow_server.auth import Caller
from scanflow_server.bodies import Named, Text, check_text
from scanflow_server.context import Given
from scanflow_server.problems import PROBLEMS
from scanflow_server.store import events
from scanflow_server.store import labels as kept
from scanflow_server.store.labels import Label, LabelState, Wanted

router = APIRouter(prefix="/labels", tags=["labels"], responses=PROBLEMS)

_MOST = 10_000
_FURTHEST = 2**31 - 1
_LONGEST = 128


class Picked(BaseModel):
    """Things that an agent wants labelled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    app: Annotated[Text, Field(min_length=1, max_length=_LONGEST)]
    team: Annotated[Text, Field(max_length=_LONGEST)] = ""
    """Whose queue it is. Empty: that of whichever team of the application asks."""

    items: Annotated[list[Wanted], Field(max_length=_MOST)]


def _some(label: JSON) -> JSON:
    if label is None:
        raise InvalidError("null is no label. Leave out what nobody can tell; it goes on waiting for one.")
    return label


class LabelBody(BaseModel):
    """A label. Who gives it, the request's token says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: Annotated[JSON, AfterValidator(_some)]
    via: Annotated[Text, Field(max_length=_LONGEST)] = ""
    """The program that labelled it, where no person did; it is recorded beside who sent it."""

    app: Annotated[Text | None, Field(max_length=_LONGEST)] = None
    """Whose queue is meant; to be said only where several applications have something of that id."""

    team: Annotated[Text | None, Field(max_length=_LONGEST)] = None
    """Which team's queue is meant; to be said only where several have something of that id."""

    replace: bool = False
    """Whether another label that it has already is replaced. What has learnt from that is as it was."""


Id = Annotated[str, Path(min_length=1, max_length=256)]


@router.post("", status_code=201)
def want(context: Given, picked: Picked) -> list[Label]:
    """Put things into the queue; what is there already stays as it is, with its label if it has one."""
    check_text(picked.model_dump(mode="json"))
    with context.store.write() as connection:
        return kept.ask(connection, picked.app, picked.items, at=context.clock(), team=picked.team)


@router.get("")
def labels(
    context: Given,
    app: Named = None,
    team: Named = None,
    state: LabelState | None = None,
    limit: Annotated[int, Query(ge=1, le=_MOST)] = 100,
    offset: Annotated[int, Query(ge=0, le=_FURTHEST)] = 0,
) -> list[Label]:
    """List what is wanted, the most critical first, or what was given, the last given first; beyond the first
    ``offset`` of those.

    Who asks for given labels a part after the other gets all of them: one given meanwhile moves the others on, so that
    some come twice and none is left out.
    """
    with context.store.read() as connection:
        return kept.listed(connection, app=app, team=team, state=state, limit=limit, offset=offset)


@router.post("/{id:path}")
def give(context: Given, caller: Caller, id: Id, given: LabelBody) -> Label:
    """Label something. The same label again changes nothing; another one is refused, unless it is to be replaced."""
    check_text([id, given.label])
    at = context.clock()
    with context.store.write() as connection:
        before, label = kept.give(
            connection,
            id,
            label=given.label,
            by=f"{given.via}, for {caller}" if given.via else caller,
            at=at,
            app=given.app,
            team=given.team,
            replace=given.replace,
        )
        if before is not label:
            type = "label.replaced" if before.state == "given" else "label.added"
            data = {"id": label.id, "run": label.run, "label": label.label, "by": label.by}
            if before.state == "given":
                data |= {"before": before.label, "before_by": before.by}
            events.tell(connection, type, f"label/{label.id}", at=at, app=label.app, data=data)
    return label
