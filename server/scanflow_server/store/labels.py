"""The label queue: what an agent wants labelled, and the labels that it was given."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, and_, insert, select, update

from scanflow.agent.records import JSON
from scanflow.errors import NotFoundError, UsageError
from scanflow_server.store.base import Row
from scanflow_server.store.tables import labels

LabelState = Literal["wanted", "given"]


class Wanted(BaseModel):
    """Something that an agent wants labelled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=256)
    """Unlike any other's of the application. The same asked for again is one."""

    run: str = ""
    data: dict[str, JSON] = Field(default_factory=dict)
    guess: JSON = None
    score: float | None = Field(default=None, allow_inf_nan=False, strict=True)
    """How critical it is; the highest are asked for first."""


class Label(Wanted, Row):
    """Something to be labelled, and its label once there is one."""

    app: str
    team: str = ""
    """Whose queue it is in; empty: any team's of the application."""

    state: LabelState = "wanted"
    label: JSON = None
    by: str | None = None
    asked: float = 0.0
    given: float | None = None


_COLUMNS = [column for column in labels.c if column.name != "number"]


def ask(connection: Connection, app: str, items: Iterable[Wanted], *, at: float, team: str = "") -> list[Label]:
    found: list[Label] = []
    for item in items:
        known = _get(connection, app, team, item.id)
        if known is None:
            known = Label(**item.model_dump(), app=app, team=team, asked=at)
            connection.execute(insert(labels).values(known.model_dump(mode="json")))
        found.append(known)
    return found


def listed(
    connection: Connection,
    *,
    app: str | None = None,
    team: str | None = None,
    state: LabelState | None = None,
    limit: int = 100,
    offset: int = 0,
) -> list[Label]:
    """Return the most critical first; of equals, those asked for first. Of given ones alone, return the last given
    first: they are never forgotten, and new ones are not to be cut off."""
    critical = (labels.c.score.is_(None), labels.c.score.desc(), labels.c.number)
    newest = (labels.c.given.desc(), labels.c.number.desc())
    query = select(*_COLUMNS).order_by(*(newest if state == "given" else critical)).limit(limit).offset(offset)
    for column, value in ((labels.c.app, app), (labels.c.state, state)):
        if value is not None:
            query = query.where(column == value)
    if team is not None:
        query = query.where(labels.c.team.in_((team, "")))
    return Label.all(connection, query)


def give(
    connection: Connection,
    id: str,
    *,
    label: JSON,
    by: str,
    at: float,
    app: str | None = None,
    team: str | None = None,
    replace: bool = False,
) -> tuple[Label, Label]:
    """Label something, and return it as it was and as it is; another label than before only where that is said."""
    rows = Label.all(connection, select(*_COLUMNS).where(labels.c.id == id))
    rows = [one for one in rows if app in {None, one.app} and (team is None or one.team in {team, ""})]
    rows = [one for one in rows if team and one.team == team] or rows
    if not rows:
        raise NotFoundError(f"Nothing with the id {id!r} is to be labelled. See what is: scanflow labels")
    if len(rows) > 1:
        raise UsageError(_several(id, rows))
    known = rows[0]
    if known.state == "given":
        if _same(known.label, label):
            return known, known
        if not replace:
            raise UsageError(
                f"{id!r} is labelled {known.label!r} already, by {known.by!r}. Replace that: "
                f"{_command(id, label, app, team)} --replace"
            )
    after = known.model_copy(update={"state": "given", "label": label, "by": by, "given": at})
    is_it = and_(labels.c.app == known.app, labels.c.team == known.team, labels.c.id == id)
    values = after.model_dump(mode="json", include={"state", "label", "by", "given"})
    connection.execute(update(labels).where(is_it).values(values))
    return known, after


def _same(one: JSON, other: JSON) -> bool:
    """Say whether two labels are one: to Python, ``true`` would be 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _several(id: str, rows: list[Label]) -> str:
    where = sorted(f"{one.app}/{one.team}" if one.team else one.app for one in rows)
    apart = len({one.app for one in rows}) > 1
    team = "" if apart or not rows[-1].team else f" --team {rows[-1].team}"
    return (
        f"Several {'applications' if apart else 'teams'} have {id!r} in their queues: {', '.join(where)}. Say which: "
        f"scanflow labels --app {rows[0].app}{team} --give {id}=LABEL"
    )


def _command(id: str, label: JSON, app: str | None, team: str | None) -> str:
    text = label if isinstance(label, str) and not _reads_as_json(label) else json.dumps(label)
    which = "".join(f" --{name} {shlex.quote(one)}" for name, one in (("app", app), ("team", team)) if one)
    return f"scanflow labels{which} --give {shlex.quote(f'{id}={text}')}"


def _reads_as_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _get(connection: Connection, app: str, team: str, id: str) -> Label | None:
    of_team = labels.c.team.in_((team, ""))
    query = select(*_COLUMNS).where(labels.c.app == app, of_team, labels.c.id == id).order_by(labels.c.team.desc())
    return Label.first(connection, query)
