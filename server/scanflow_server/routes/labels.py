"""The label queue: what agents picked to be labelled, and the labels that people give.

Needs ``app.state.store`` (:class:`~scanflow_server.store.base.Store`), or ``app.state.context`` with a store.
"""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from scanflow.agent.records import JSON, Event
from scanflow_server.bodies import Named, Text, check_text
from scanflow_server.problems import PROBLEMS
from scanflow_server.store import events
from scanflow_server.store import labels as kept
from scanflow_server.store.base import Store
from scanflow_server.store.labels import Label, LabelState, Wanted

__all__ = ["Given", "Picked", "router", "store_of"]

router = APIRouter(prefix="/labels", tags=["labels"], responses=PROBLEMS)

_MOST = 10_000
_FURTHEST = 2**31 - 1
_LONGEST = 128


class Picked(BaseModel):
    """Things that an agent wants labelled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    app: Annotated[Text, Field(min_length=1, max_length=_LONGEST)]
    items: Annotated[list[Wanted], Field(max_length=_MOST)]


class Given(BaseModel):
    """A label, and who gives it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: JSON
    by: Annotated[Text, Field(min_length=1, max_length=_LONGEST)]
    app: Annotated[Text | None, Field(max_length=_LONGEST)] = None
    """Whose queue is meant; to be said only where several applications have something of that id."""


def store_of(request: Request) -> Store:
    """Return the server's store."""
    state = request.app.state
    store: Store = state.store if hasattr(state, "store") else state.context.store
    return store


WithStore = Annotated[Store, Depends(store_of)]
Id = Annotated[str, Path(min_length=1, max_length=256)]


@router.post("", status_code=201)
def want(store: WithStore, picked: Picked) -> list[Label]:
    """Put things into the queue; what is there already stays as it is, with its label if it has one."""
    check_text(picked.model_dump(mode="json"))
    with store.write() as connection:
        return kept.ask(connection, picked.app, picked.items, at=time.time())


@router.get("")
def labels(
    store: WithStore,
    app: Named = None,
    state: LabelState | None = None,
    limit: Annotated[int, Query(ge=1, le=_MOST)] = 100,
    offset: Annotated[int, Query(ge=0, le=_FURTHEST)] = 0,
) -> list[Label]:
    """List what is wanted, the most critical first, or what was given, the last given first; beyond the first
    ``offset`` of those.

    Who asks for given labels a part after the other gets all of them: one given meanwhile moves the others on, so that
    some come twice and none is left out.
    """
    with store.read() as connection:
        return kept.listed(connection, app=app, state=state, limit=limit, offset=offset)


@router.post("/{id:path}")
def give(store: WithStore, id: Id, given: Given) -> Label:
    """Label something. The same label again changes nothing; another one is refused."""
    check_text([id, given.label])
    at = time.time()
    with store.write() as connection:
        label = kept.give(connection, id, label=given.label, by=given.by, at=at, app=given.app)
        if label.given == at:
            data = {"id": label.id, "run": label.run, "label": label.label, "by": label.by}
            added = Event(at=at, type="label.added", app=label.app, subject=f"label/{label.id}", data=data)
            events.append(connection, [added])
    return label
