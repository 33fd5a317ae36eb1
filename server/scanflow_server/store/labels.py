"""The label queue: what an agent wants labelled, and the labels that it was given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    insert,
    select,
    update,
)

from scanflow.agent import records
from scanflow.errors import NotFoundError, UsageError
from scanflow_server.store.base import metadata

__all__ = ["Label", "LabelState", "Wanted", "ask", "give", "listed"]

_NAME = 128
_JSON = JSON(none_as_null=True)

labels = Table(
    "labels",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("app", String(_NAME), nullable=False),
    Column("id", String(256), nullable=False),
    Column("run", Text, nullable=False),
    Column("data", _JSON, nullable=False),
    Column("guess", _JSON),
    Column("score", Float),
    Column("state", String(16), nullable=False),
    Column("label", _JSON),
    Column("by", Text),
    Column("asked", Float, nullable=False),
    Column("given", Float),
    UniqueConstraint("app", "id"),
    Index(None, "app", "state"),
    sqlite_autoincrement=True,
)
"""One row for each thing to be labelled."""

LabelState = Literal["wanted", "given"]


class Wanted(BaseModel):
    """Something that an agent wants labelled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=256)
    """Unlike any other's of the application. The same asked for again is one."""

    run: str = ""
    """The run that picked it."""

    data: dict[str, records.JSON] = Field(default_factory=dict)
    """What whoever labels it has to see, or where that is."""

    guess: records.JSON = None
    """What the model took it for."""

    score: float | None = Field(default=None, allow_inf_nan=False, strict=True)
    """How critical it is; the highest are asked for first."""


class Label(Wanted):
    """Something to be labelled, and its label once there is one."""

    app: str
    state: LabelState = "wanted"
    label: records.JSON = None
    by: str | None = None
    asked: float = 0.0
    """When it was asked for, in seconds since the epoch."""

    given: float | None = None
    """When it was given its label."""


def ask(connection: Connection, app: str, items: Iterable[Wanted], *, at: float) -> list[Label]:
    """Put things into the queue, and return them as they then are; one that is there already stays as it is."""
    found: list[Label] = []
    for item in items:
        known = _get(connection, app, item.id)
        if known is None:
            known = Label(**item.model_dump(), app=app, asked=at)
            connection.execute(insert(labels).values(known.model_dump(mode="json")))
        found.append(known)
    return found


def listed(
    connection: Connection,
    *,
    app: str | None = None,
    state: LabelState | None = None,
    limit: int = 100,
    offset: int = 0,
) -> list[Label]:
    """Return the most critical first; of equals, those asked for first. Of given ones alone, return the last given
    first: they are never forgotten, and new ones are not to be cut off."""
    critical = (labels.c.score.is_(None), labels.c.score.desc(), labels.c.number)
    newest = (labels.c.given.desc(), labels.c.number.desc())
    query = select(labels).order_by(*(newest if state == "given" else critical)).limit(limit).offset(offset)
    for column, value in ((labels.c.app, app), (labels.c.state, state)):
        if value is not None:
            query = query.where(column == value)
    return [_label(row) for row in connection.execute(query).mappings()]


def give(connection: Connection, id: str, *, label: records.JSON, by: str, at: float, app: str | None = None) -> Label:
    """Label something, and return it. The same label given again changes nothing.

    Raises:
        NotFoundError: nothing of that id is in the queue.
        UsageError: it has another label already, or several applications have something of that id.
    """
    query = select(labels).where(labels.c.id == id)
    rows = [_label(row) for row in connection.execute(query).mappings()]
    rows = [one for one in rows if app in {None, one.app}]
    if not rows:
        raise NotFoundError(f"Nothing with the id {id!r} is to be labelled. See what is: scanflow labels")
    if len(rows) > 1:
        apps = ", ".join(sorted(one.app for one in rows))
        raise UsageError(
            f"Several applications have {id!r} in their queues: {apps}. Say which: scanflow labels --app "
            f"{rows[0].app} --give {id}=LABEL"
        )
    known = rows[0]
    if known.state == "given":
        if known.label == label:
            return known
        raise UsageError(
            f"{id!r} is labelled {known.label!r} already, by {known.by!r}. A label that was learnt from is not changed."
        )
    after = known.model_copy(update={"state": "given", "label": label, "by": by, "given": at})
    is_it = and_(labels.c.app == known.app, labels.c.id == id)
    values = after.model_dump(mode="json", include={"state", "label", "by", "given"})
    connection.execute(update(labels).where(is_it).values(values))
    return after


def _get(connection: Connection, app: str, id: str) -> Label | None:
    query = select(labels).where(labels.c.app == app, labels.c.id == id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _label(row)


def _label(row: object) -> Label:
    return Label.model_validate({name: value for name, value in dict(row).items() if name != "number"})  # type: ignore[call-overload]
