"""Intents of agents and of people and their actions, the owners of fields of targets, and the trail of each intent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from sqlalchemy import Connection, RowMapping, Text, and_, cast, insert, or_, select, update
from sqlalchemy import delete as sql_delete

from scanflow.agent.agent_records import JSON, Action, Intent, Verdict
from scanflow.errors import NotFoundError
from scanflow_server.intent_identity import get_place, qualify_key, qualify_strategy
from scanflow_server.store.base import Row
from scanflow_server.store.tables import OPEN, fields, intents, trail

_WORKS = or_(
    intents.c.state == "running",
    and_(intents.c.state == "pending", intents.c.tries > 0),
    intents.c.reverting.is_not(None),
)
"""Actions that are changing their target: running, waiting for a retry, or being reverted."""

_UNENDED = intents.c.state.in_(["pending", "running"])
_COUNTS = intents.c.verdict.in_(["act", "suggest", "approve"])
_REFUSED_BY_A_PERSON = and_(
    intents.c.verdict == "refuse", intents.c.document["decision"]["by"].as_string().is_not(None)
)

_IN_DOCUMENT = {
    name: intents.c.document["intent"][name].as_string() for name in ("agent", "strategy", "primitive", "target")
}
"""Built once: SQLAlchemy takes as long to resolve the type of a new one as for the rest of a query."""


class ActionRow(Row):
    """An action, and the engine's own state of it."""

    action: Action
    approved_by: str | None = None
    due: float | None = None
    tries: int = 0
    guard_before: float | None = None
    guard_until: float | None = None
    """When the guard stops watching; None: it does not watch."""

    reverting: str | None = None
    request: dict[str, Any] | None = None
    """A person's, of a change of a service; None: it is an agent's action."""

    progress: tuple[str, ...] = ()
    """What the drivers that have ended reported."""

    drivers: tuple[str, ...] = ()
    """The names of the drivers that changed a service, and whose end is recorded."""

    record: dict[str, Any] | None = None
    """The service's record when the last of them ended; None: it failed, or deleted the service."""

    problem: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        return self.action.id

    @property
    def intent(self) -> Intent:
        return self.action.intent

    def replace(self, *, action: Mapping[str, Any] | None = None, **changes: Any) -> ActionRow:
        after = self.action.model_copy(update=dict(action or {}))
        return self.model_copy(update={"action": after, **changes})


class FieldRow(Row):
    """One field of a target, as the server wrote it last.

    Without a ``strategy``, but with an ``agent`` and an ``intent``: by that person's command, at the time ``until``.
    """

    field: str
    strategy: str | None = None
    app: str | None = None
    agent: str | None = None
    intent: str | None = None
    priority: int = 0
    until: float = 0.0
    written: dict[str, JSON] | None = None
    foreign_value: dict[str, JSON] | None = None
    foreign_since: float | None = None


def find(connection: Connection, id: str) -> ActionRow | None:
    return _select_one(connection, intents.c.id == id)


def get(connection: Connection, id: str) -> ActionRow:
    """Return an intent's row; NotFoundError: there is none."""
    if (row := find(connection, id)) is None:
        raise make_not_found(id)
    return row


def make_not_found(id: str) -> NotFoundError:
    return NotFoundError(f"There is no action {id!r}. List the actions: scanflow why")


def find_by_key(connection: Connection, intent: Intent) -> ActionRow | None:
    own = (_qualify_key(intent), intent.key)  # the latter in rows of a version whose agents shared their keys
    same = and_(intents.c.app == intent.app, intents.c.team == intent.team, intents.c.key.in_(own))
    rows = map(parse_row, connection.execute(select(intents).where(same)).mappings())
    return next((row for row in rows if qualify_key(row.intent) == qualify_key(intent)), None)


def _qualify_key(intent: Intent) -> str:
    """Return an intent's key with its agent's name, which has no slash, unlike keys."""
    return f"{intent.agent}/{intent.key}"


class Filter(TypedDict, total=False):
    """Filter of intents: any of these states and verdicts, and equal in all else. None matches everything."""

    state: str | Collection[str] | None
    verdict: str | Collection[str] | None
    app: str | None
    team: str | None
    agent: str | None
    strategy: str | None
    primitive: str | None
    target: str | None


MaskAction = Callable[[str, str, str], str]
"""Returns what is shown of an action's JSON, given its application, its team and the text."""


def list_actions(
    connection: Connection,
    *,
    limit: int = 100,
    offset: int = 0,
    mask: MaskAction = lambda _app, _team, text: text,
    **about: Unpack[Filter],
) -> list[Action]:
    """Return the matching actions, newest first, without the first ``offset``."""
    rows = _select_rows(connection, limit, about, offset=offset)
    return [Action.model_validate_json(mask(row.app, row.team, row.document)) for row in rows]


def dump_actions(connection: Connection, *, limit: int = 100, mask: MaskAction, **about: Unpack[Filter]) -> str:
    """Return the same as a JSON list, as stored: parsing and dumping a hundred takes 3 ms of the interpreter."""
    rows = _select_rows(connection, limit, about)
    return f"[{','.join(mask(row.app, row.team, row.document) for row in rows)}]"


def _select_rows(connection: Connection, limit: int, about: Filter, *, offset: int = 0) -> Sequence[Any]:
    columns = cast(intents.c.document, Text).label("document"), intents.c.app, intents.c.team
    query = select(*columns).order_by(intents.c.number.desc()).limit(limit).offset(offset)
    for column, among in ((intents.c.state, about.get("state")), (intents.c.verdict, about.get("verdict"))):
        if among:
            query = query.where(column.in_([among] if isinstance(among, str) else list(among)))
    app, team = about.get("app"), about.get("team")
    agent, strategy, target = about.get("agent"), about.get("strategy"), about.get("target")
    named = {"agent": agent, "strategy": strategy, "primitive": about.get("primitive"), "target": target}
    for column, value in (
        (intents.c.app, app),
        (intents.c.team, team),
        *((_IN_DOCUMENT[name], value) for name, value in named.items()),
    ):
        if value is not None:
            query = query.where(column == value)
    identity: dict[str, Any] = {"app": app, "team": team, **named}
    intent = Intent.model_construct(**identity)
    if None not in {app, team, target}:  # these two columns have indexes
        query = query.where(intents.c.place == get_place(intent))
    if None not in {app, team, agent, strategy}:
        query = query.where(intents.c.strategy == qualify_strategy(intent))
    return connection.execute(query).all()


def load_history(
    connection: Connection, wanted: Iterable[Intent], *, since: float, refused_since: float
) -> list[Action]:
    """Return what was decided since then on the same targets and for the same strategies, what is at work, and of the
    strategies what people refused."""
    among = list(wanted)
    places, strategies = {get_place(intent) for intent in among}, {qualify_strategy(intent) for intent in among}
    late = intents.c.decided >= since
    near = or_(and_(intents.c.place.in_(places), late), and_(intents.c.strategy.in_(strategies), late))
    documents: dict[int, Any] = {}
    refused = and_(intents.c.strategy.in_(strategies), intents.c.decided >= refused_since, _REFUSED_BY_A_PERSON)
    for which in (near, refused, and_(OPEN, _WORKS)):  # separate queries: no index covers all
        columns = intents.c.number, intents.c.place, intents.c.strategy, intents.c.document
        rows = connection.execute(select(*columns).where(which, or_(_COUNTS, _REFUSED_BY_A_PERSON)))
        documents |= {row[0]: row[3] for row in rows if row[1] in places or row[2] in strategies}
    return [Action.model_validate(documents[number]) for number in sorted(documents)]


def list_newest(connection: Connection, intent: Intent, *, limit: int) -> list[ActionRow]:
    """Return the newest rows of an intent's strategy on its target, the newest first."""
    same = and_(intents.c.strategy == qualify_strategy(intent), intents.c.place == get_place(intent))
    query = select(intents).where(same, intents.c.id != intent.id).order_by(intents.c.number.desc()).limit(limit)
    return [parse_row(row) for row in connection.execute(query).mappings()]


def delete(connection: Connection, id: str) -> None:
    connection.execute(sql_delete(intents).where(intents.c.id == id))


def list_busy_ids(connection: Connection, place: str) -> set[str]:
    works = connection.execute(select(intents.c.id, intents.c.place).where(OPEN, _WORKS))
    return {id for id, other in works if other == place}  # filtered by place, SQLite would read all intents there


def list_in_effect(connection: Connection, place: str, *, since: float = 0.0, limit: int = 100) -> list[Action]:
    stands = or_(intents.c.state.in_(["succeeded", "lost"]), _WORKS)
    query = select(intents.c.document).where(intents.c.place == place, stands, intents.c.decided >= since)
    newest = query.order_by(intents.c.decided.desc(), intents.c.number.desc()).limit(limit)
    return [Action.model_validate(document) for document in connection.execute(newest).scalars()]


def list_waiting(
    connection: Connection, place: str, *, verdicts: Collection[Verdict] = ("act", "queue")
) -> list[ActionRow]:
    waits = and_(intents.c.state == "pending", intents.c.verdict.in_(verdicts))
    query = select(intents).where(OPEN, intents.c.place == place, waits).order_by(intents.c.number)
    return [parse_row(row) for row in connection.execute(query).mappings()]


def list_due(connection: Connection) -> list[ActionRow]:
    acts = and_(_UNENDED, intents.c.verdict.in_(["act", "queue"]))
    watched = or_(intents.c.guard_until.is_not(None), intents.c.reverting.is_not(None))
    rows = connection.execute(select(intents).where(OPEN, or_(acts, watched))).mappings()
    # Sorted here: by the number, SQLite would not use the partial index.
    return [parse_row(row) for row in sorted(rows, key=lambda row: int(row["number"]))]


def list_open_changes(connection: Connection) -> list[ActionRow]:
    """Return the changes of services that people requested or agents make, and that have not ended, in order."""
    makes = and_(intents.c.state == "running", intents.c.place.like("service/%"))
    changes = or_(makes, intents.c.request.is_not(None))
    rows = connection.execute(select(intents).where(OPEN, _UNENDED, changes)).mappings()
    return [parse_row(row) for row in sorted(rows, key=lambda row: int(row["number"]))]


def add(connection: Connection, row: ActionRow) -> None:
    connection.execute(insert(intents).values(_build_values(row)))


def put(connection: Connection, row: ActionRow) -> None:
    connection.execute(update(intents).where(intents.c.id == row.id).values(_build_values(row)))


def load_fields(connection: Connection, place: str) -> dict[str, FieldRow]:
    rows = FieldRow.load_all(connection, select(fields).where(fields.c.place == place))
    return {field.field: field for field in rows}


def put_field(connection: Connection, place: str, field: FieldRow) -> None:
    is_it = and_(fields.c.place == place, fields.c.field == field.field)
    values = field.model_dump(mode="json")
    if connection.execute(update(fields).where(is_it).values(values)).rowcount == 0:
        connection.execute(insert(fields).values(place=place, **values))


def append_trail(connection: Connection, id: str, at: float, text: str) -> None:
    connection.execute(insert(trail).values(intent=id, at=at, text=text))


def load_trail(connection: Connection, id: str) -> Sequence[tuple[float, str]]:
    query = select(trail.c.at, trail.c.text).where(trail.c.intent == id).order_by(trail.c.number)
    return [(float(at), str(text)) for at, text in connection.execute(query)]


def _build_values(row: ActionRow) -> dict[str, Any]:
    action = row.action
    return {
        "id": action.id,
        "app": action.intent.app,
        "team": action.intent.team,
        "key": _qualify_key(action.intent),
        "place": get_place(action.intent),
        "strategy": qualify_strategy(action.intent),
        "state": action.state,
        "verdict": action.decision.verdict,
        "decided": action.decision.at if action.began is None else action.began,
        "document": action.model_dump(mode="json"),
        **row.model_dump(mode="json", exclude={"action"}),
    }


def _select_one(connection: Connection, which: Any) -> ActionRow | None:
    row = connection.execute(select(intents).where(which)).mappings().first()
    return None if row is None else parse_row(row)


def parse_row(row: RowMapping) -> ActionRow:
    own = {name: row[name] for name in ActionRow.model_fields if name != "action" and row[name] is not None}
    return ActionRow(action=Action.model_validate(row["document"]), **own)
