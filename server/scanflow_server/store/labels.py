"""The label queue: what an agent wants labelled, and all labels that it was given.

Whoever labels a point has one vote, which is the label that they gave last. In use is the label with the most votes; of
equals, the one given last. A point with votes for several labels is disputed. No label is ever forgotten.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from sqlalchemy import ColumnElement, Connection, and_, func, insert, or_, select, true, update

from scanflow.agent.records import JSON
from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow_server.store.applications import only_of
from scanflow_server.store.base import Row
from scanflow_server.store.tables import labels
from scanflow_server.store.tables import votes as votes_table

LabelState = Literal["wanted", "given"]

_PNG = b"\x89PNG\r\n\x1a\n"
_MOST_PICTURE = 200_000
_MOST_VALUES = 1000
_MOST_TOGETHER = 10_000
_IDS = 500


def _png(text: str) -> str:
    try:
        head = base64.b64decode(text, validate=True)[: len(_PNG)]
    except ValueError as error:
        raise InvalidError("The picture is not in base64. Send a PNG file in base64.") from error
    if head != _PNG:
        raise InvalidError("The picture is no PNG. Send a PNG file in base64.")
    return text


class Wanted(BaseModel):
    """Something that an agent wants labelled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=256)
    """Unlike any other's of the application. The same asked for again is one."""

    run: str = ""
    """The detection that picked it."""

    purpose: Literal["train", "evaluate"] = "train"
    """What its label is for: to learn from, or to judge models by."""

    data: dict[str, JSON] = Field(default_factory=dict)
    row: Annotated[dict[str, JSON], Field(max_length=_MOST_VALUES)] | None = None
    """Its values by the names of its columns, where it is a row of a table."""

    picture: Annotated[str, Field(max_length=_MOST_PICTURE), AfterValidator(_png)] | None = None
    """A PNG file in base64, where it is a picture."""

    guess: JSON = None
    score: float | None = Field(default=None, allow_inf_nan=False, strict=True)
    """How critical it is; the highest are asked for first."""


class Vote(Row):
    """A label that somebody gave."""

    by: str
    label: JSON
    at: float


class Label(Row):
    """Something to be labelled, and its label once there is one."""

    id: str
    run: str = ""
    purpose: Literal["train", "evaluate"] = "train"
    data: dict[str, JSON] = Field(default_factory=dict)
    guess: JSON = None
    score: float | None = None
    app: str
    team: str = ""
    """Whose queue it is in; empty: any team's of the application."""

    state: LabelState = "wanted"
    label: JSON = None
    by: str | None = None
    """Who gave the label in use last."""

    asked: float = 0.0
    given: float | None = None
    """Since when that label is in use."""

    disputed: bool = False
    row: dict[str, JSON] | None = None
    """This and the next two are left out where they are not asked for."""

    picture: str | None = None
    votes: list[Vote] | None = None
    """All labels that anybody gave, the oldest first."""


_ALL = [column for column in labels.c if column.name != "number"]
_BRIEF = [column for column in _ALL if column.name not in {"row", "picture"}]
CRITICAL = (labels.c.score.is_(None), labels.c.score.desc(), labels.c.number)


def ask(
    connection: Connection, app: str, items: Iterable[Wanted], *, at: float, team: str = "", own: str | None = None
) -> list[Label]:
    """Put things into a team's queue. ``own``, here and below: the team to whom no other's labels are there."""
    found: list[Label] = []
    for item in items:
        known = _get(connection, app, team, item.id, own=own)
        if known is None:
            known = Label(**item.model_dump(exclude={"row", "picture"}), app=app, team=team, asked=at)
            values = known.model_dump(mode="json", exclude={"votes"}) | item.model_dump(include={"row", "picture"})
            connection.execute(insert(labels).values(values))
        found.append(known)
    return found


def listed(
    connection: Connection,
    *,
    app: str | None = None,
    team: str | None = None,
    own: str | None = None,
    state: LabelState | None = None,
    disputed: bool | None = None,
    details: bool = False,
    limit: int = 100,
    offset: int = 0,
) -> list[Label]:
    """Return the most critical first; of equals, those asked for first. Of given ones alone, return the last given
    first: they are never forgotten, and new ones are not to be cut off. ``details``: with rows, pictures and votes."""
    newest = (labels.c.given.desc(), labels.c.number.desc())
    query = select(*(_ALL if details else _BRIEF))
    query = query.order_by(*(newest if state == "given" else CRITICAL)).limit(limit).offset(offset)
    for column, value in ((labels.c.app, app), (labels.c.state, state), (labels.c.disputed, disputed)):
        if value is not None:
            query = query.where(column == value)
    if team is not None:
        query = query.where(labels.c.team.in_((team, "")))
    query = query.where(_seen_by(own))
    found = Label.all(connection, query)
    if not details:
        return found
    given = _votes_of(connection, [one.id for one in found if one.state == "given"])
    return [one.model_copy(update={"votes": given[one.app, one.team, one.id]}) for one in found]


def show(connection: Connection, app: str, team: str, id: str, *, own: str | None = None) -> Label:
    """Return one with all that is known of it; NotFoundError: there is none."""
    known = Label.first(connection, select(*_ALL).where(_is(app, team, id), _seen_by(own)))
    if known is None:
        raise _unknown(id)
    return known.model_copy(update={"votes": votes(connection, known)})


def picked_with(connection: Connection, of: Label) -> list[Label]:
    """Return all that the same detection picked, the most critical first."""
    same = and_(labels.c.app == of.app, labels.c.team == of.team, labels.c.run == of.run)
    return Label.all(connection, select(*_BRIEF).where(same).order_by(*CRITICAL).limit(_MOST_TOGETHER))


def waiting(connection: Connection, *, own: str | None = None) -> int:
    wanted = select(func.count()).where(labels.c.state == "wanted", _seen_by(own))
    return int(connection.execute(wanted).scalar_one())


def votes(connection: Connection, of: Label) -> list[Vote]:
    """Return all labels that anybody gave it, the oldest first."""
    return _votes_of(connection, [of.id])[of.app, of.team, of.id]


def _votes_of(connection: Connection, ids: Sequence[str]) -> defaultdict[tuple[str, str, str], list[Vote]]:
    found: defaultdict[tuple[str, str, str], list[Vote]] = defaultdict(list)
    for start in range(0, len(ids), _IDS):  # a database takes so many values at once, and not many more
        query = (
            select(votes_table).where(votes_table.c.id.in_(ids[start : start + _IDS])).order_by(votes_table.c.number)
        )
        for row in connection.execute(query).mappings():
            found[row["app"], row["team"], row["id"]].append(Vote.model_validate(dict(row)))
    return found


def in_use(given: Sequence[Vote]) -> tuple[Vote, bool]:
    """Return the newest vote for the label that counts, and whether there are votes for another. Pure."""
    last = {vote.by: number for number, vote in enumerate(given)}
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number in last.values():
        numbers[_text(given[number].label)].append(number)
    most = max(numbers.values(), key=lambda some: (len(some), max(some)))
    return given[max(most)], len(numbers) > 1


def give(
    connection: Connection,
    id: str,
    *,
    label: JSON,
    by: str,
    at: float,
    app: str | None = None,
    team: str | None = None,
    own: str | None = None,
    replace: bool = False,
) -> tuple[Label, Label, JSON]:
    """Label something. Return it as it was and as it is, and the label that the same labeller gave it before.

    Raises:
        NotFoundError: there is nothing of that id.
        UsageError: there are several; or the labeller gave it another label, and that is not to be replaced.
    """
    rows = Label.all(connection, select(*_BRIEF).where(labels.c.id == id, _seen_by(own)))
    rows = [one for one in rows if app in {None, one.app} and (team is None or one.team in {team, ""})]
    rows = [one for one in rows if team and one.team == team] or rows
    if not rows:
        raise _unknown(id)
    if len(rows) > 1:
        raise UsageError(_several(id, rows))
    known = rows[0]
    given = votes(connection, known)
    said = next((vote.label for vote in reversed(given) if vote.by == by), None)
    if said is not None and _text(said) == _text(label):
        return known, known, said
    if said is not None and not replace:
        raise UsageError(
            f"{id!r} is labelled {said!r} already, by {by!r}. Replace that: {_command(id, label, app, team)} --replace"
        )
    vote = Vote(by=by, label=label, at=at)
    whose = {"app": known.app, "team": known.team, "id": id}
    connection.execute(insert(votes_table).values(whose | vote.model_dump(mode="json")))
    use, disputed = in_use([*given, vote])
    changes = {"state": "given", "by": use.by, "disputed": disputed}
    if known.state == "wanted" or _text(use.label) != _text(known.label):
        changes |= {"label": use.label, "given": at}
    connection.execute(update(labels).where(_is(known.app, known.team, id)).values(changes))
    return known, known.model_copy(update=changes), said


def _is(app: str, team: str, id: str) -> ColumnElement[bool]:
    return and_(labels.c.app == app, labels.c.team == team, labels.c.id == id)


def _seen_by(own: str | None) -> ColumnElement[bool]:
    """Select what a team sees, None: all teams: its own, and what is of no certain team of its own applications."""
    if own is None:
        return true()
    return or_(labels.c.team == own, and_(labels.c.team == "", labels.c.app.in_(only_of(own))))


def _unknown(id: str) -> NotFoundError:
    return NotFoundError(f"Nothing with the id {id!r} is to be labelled. See what is: scanflow labels")


def _text(label: JSON) -> str:
    """Return a label so that two are told apart: to Python, ``true`` would be 1."""
    return json.dumps(label, sort_keys=True)


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


def _get(connection: Connection, app: str, team: str, id: str, *, own: str | None) -> Label | None:
    of_team = labels.c.team.in_((team, "")), _seen_by(own)
    query = select(*_BRIEF).where(labels.c.app == app, *of_team, labels.c.id == id).order_by(labels.c.team.desc())
    return Label.first(connection, query)
