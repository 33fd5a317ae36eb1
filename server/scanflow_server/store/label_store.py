"""The label queue: the samples that agents want labelled, and all their labels.

A labeller has one vote per sample: the label they gave last. Whoever a token names is one labeller, whatever programs
label with it. The label with the most votes is in use; on a tie, the one given last. A sample with votes for several
labels is disputed. Labels are never deleted.
"""

from __future__ import annotations

import base64
import json
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, insert, or_, select, true, update

from scanflow.agent.agent_records import JSON
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UsageError
from scanflow_server.store import usage
from scanflow_server.store.application_store import select_exclusive_names
from scanflow_server.store.base import Row, split
from scanflow_server.store.tables import labels
from scanflow_server.store.tables import votes as votes_table

LabelState = Literal["wanted", "given"]

_FOR = ", for "
"""What stands between a program and the holder of the token that it labels with."""

_PNG = b"\x89PNG\r\n\x1a\n"
_MAX_PICTURE_LENGTH = 200_000
_MAX_VALUES = 1000
_MAX_BATCH = 10_000
_IDS = 500


def _check_png(text: str) -> str:
    try:
        head = base64.b64decode(text, validate=True)[: len(_PNG)]
    except ValueError as error:
        raise InvalidError("The picture is not valid base64. Send a PNG file in base64.") from error
    if head != _PNG:
        raise InvalidError("The picture is not a PNG file. Send a PNG file in base64.")
    return text


class LabelCandidate(BaseModel):
    """A sample that an agent wants labelled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=256)
    """Unique in the application. A repeated request has no effect."""

    run: str = ""
    """The detection run that picked it."""

    purpose: Literal["train", "evaluate"] = "train"
    """The use of its label: training, or evaluation of models."""

    data: dict[str, JSON] = Field(default_factory=dict)
    row: Annotated[dict[str, JSON], Field(max_length=_MAX_VALUES)] | None = None
    """Its values by column name, if it is a row of a table."""

    picture: Annotated[str, Field(max_length=_MAX_PICTURE_LENGTH), AfterValidator(_check_png)] | None = None
    """A PNG file in base64, if it is an image."""

    guess: JSON = None
    score: float | None = Field(default=None, allow_inf_nan=False, strict=True)
    """Its criticality; the highest come first."""


class Vote(Row):
    """A label by one labeller."""

    by: str
    """Who gave it: the holder of a token, or ``PROGRAM, for HOLDER``."""

    label: JSON
    at: float

    @property
    def voter(self) -> str:
        """The holder of the token, whose one vote it is, whatever program gave it."""
        return self.by.rpartition(_FOR)[2]


class Label(Row):
    """A sample to label, with its label once there is one."""

    id: str
    run: str = ""
    purpose: Literal["train", "evaluate"] = "train"
    data: dict[str, JSON] = Field(default_factory=dict)
    guess: JSON = None
    score: float | None = None
    app: str
    team: str = ""
    """The team of its queue; empty: any team of the application."""

    state: LabelState = "wanted"
    label: JSON = None
    by: str | None = None
    """The last labeller who gave the label in use."""

    asked: float = 0.0
    given: float | None = None
    """When that label came into use."""

    disputed: bool = False
    row: dict[str, JSON] | None = None
    """This and the next two are None unless details were requested."""

    picture: str | None = None
    votes: list[Vote] | None = None
    """All votes, the oldest first."""


_COLUMNS = [column for column in labels.c if column.name != "number"]
_BRIEF = [column for column in _COLUMNS if column.name not in {"row", "picture"}]
_VOTED = {"state", "by", "disputed", "label", "given"}
"""What a vote changes of a sample."""

_UPDATE = update(labels).where(
    and_(labels.c.app == bindparam("of_app"), labels.c.team == bindparam("of_team"), labels.c.id == bindparam("of_id"))
)
CRITICAL = (labels.c.score.is_(None), labels.c.score.desc(), labels.c.number)


def enqueue(
    connection: Connection,
    app: str,
    items: Iterable[LabelCandidate],
    *,
    at: float,
    team: str = "",
    own: str | None = None,
) -> list[Label]:
    """Add samples to a team's queue. ``own``, here and below: the only team whose labels are visible; None: all."""
    queued, rows = dict[str, Label](), list[dict[str, Any]]()
    wanted = list(items)
    for part in split(wanted, _IDS):
        queued |= _load_queued(connection, app, team, [item.id for item in part], own=own)
    n_bytes = 0
    for item in wanted:
        if item.id not in queued:
            label = Label(**item.model_dump(exclude={"row", "picture"}), app=app, team=team, asked=at)
            rows.append(label.model_dump(mode="json", exclude={"votes"}) | item.model_dump(include={"row", "picture"}))
            queued[item.id] = label
            n_bytes += measure_sample(item)
    if rows:
        connection.execute(insert(labels), rows)
        usage.add(connection, team, n_bytes)
    return [queued[item.id] for item in wanted]


def measure_sample(item: LabelCandidate) -> int:
    """Return what a sample takes of its team's share of the database, in bytes."""
    return usage.measure(item.id, item.data, item.row, item.picture)


def list_labels(
    connection: Connection,
    *,
    app: str | None = None,
    team: str | None = None,
    own: str | None = None,
    state: LabelState | None = None,
    disputed: bool | None = None,
    runs: Collection[str] | None = None,
    details: bool = False,
    limit: int = 100,
    offset: int = 0,
) -> list[Label]:
    """Return samples by criticality, then age; with ``state="given"`` the last labelled first, so that the limit does
    not cut off new labels. ``runs``: those that these runs picked; ``details``: with rows, pictures and votes."""
    newest = (labels.c.given.desc(), labels.c.number.desc())
    order = newest if state == "given" else CRITICAL
    query = select(labels.c.number).order_by(*order).limit(limit).offset(offset)
    for column, value in ((labels.c.app, app), (labels.c.state, state), (labels.c.disputed, disputed)):
        if value is not None:
            query = query.where(column == value)
    if team is not None:
        query = query.where(labels.c.team.in_((team, "")))
    if runs is not None:
        query = query.where(labels.c.run.in_(runs))
    query = query.where(_filter_visible(own))
    # Numbers first: to sort whole rows takes ten times as long.
    page = select(*(_COLUMNS if details else _BRIEF)).where(labels.c.number.in_(query.scalar_subquery()))
    rows = Label.load_all(connection, page.order_by(*order))
    if not details:
        return rows
    votes_by_key = _load_votes(connection, [label.id for label in rows if label.state == "given"])
    return [label.model_copy(update={"votes": votes_by_key[label.app, label.team, label.id]}) for label in rows]


def get(connection: Connection, app: str, team: str, id: str, *, own: str | None = None) -> Label:
    """Return a sample with its row, picture and votes; NotFoundError: there is none."""
    label = Label.load_first(connection, select(*_COLUMNS).where(_match(app, team, id), _filter_visible(own)))
    if label is None:
        raise _make_not_found(id)
    return label.model_copy(update={"votes": list_votes(connection, label)})


def list_picked_with(connection: Connection, label: Label) -> list[Label]:
    """Return all samples that the same detection picked, the most critical first."""
    same = and_(labels.c.app == label.app, labels.c.team == label.team, labels.c.run == label.run)
    return Label.load_all(connection, select(*_BRIEF).where(same).order_by(*CRITICAL).limit(_MAX_BATCH))


def count_waiting(connection: Connection, *, own: str | None = None) -> int:
    wanted = select(func.count()).where(labels.c.state == "wanted", _filter_visible(own))
    return int(connection.execute(wanted).scalar_one())


def list_votes(connection: Connection, label: Label) -> list[Vote]:
    """Return all votes on a sample, the oldest first."""
    return _load_votes(connection, [label.id])[label.app, label.team, label.id]


def _load_votes(connection: Connection, ids: Sequence[str]) -> defaultdict[tuple[str, str, str], list[Vote]]:
    votes_by_key: defaultdict[tuple[str, str, str], list[Vote]] = defaultdict(list)
    for part in split(ids, _IDS):
        query = select(votes_table).where(votes_table.c.id.in_(part)).order_by(votes_table.c.number)
        for row in connection.execute(query).mappings():
            votes_by_key[row["app"], row["team"], row["id"]].append(Vote.model_validate(dict(row)))
    return votes_by_key


def tally_votes(votes: Sequence[Vote]) -> tuple[Vote, bool]:
    """Return the newest vote for the winning label, and whether there are votes for another. Pure."""
    last = {vote.voter: number for number, vote in enumerate(votes)}
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number in last.values():
        numbers[_dump_label(votes[number].label)].append(number)
    most = max(numbers.values(), key=lambda some: (len(some), max(some)))
    return votes[max(most)], len(numbers) > 1


class Assignable(NamedTuple):
    """A label that can be recorded: its sample, the votes on that, and the labeller's previous label of it."""

    sample: Label
    label: JSON
    votes: list[Vote]
    previous: JSON

    @property
    def is_repeated(self) -> bool:
        return self.previous is not None and _dump_label(self.previous) == _dump_label(self.label)


class AssignedLabel(NamedTuple):
    """A recorded label: its sample before and after, and the labeller's previous label of it."""

    before: Label
    after: Label
    previous: JSON


class Labeller:
    """Labels samples in one's name: those of an application and team (None: any) that are visible."""

    def __init__(
        self,
        name: str,
        *,
        via: str = "",
        app: str | None = None,
        team: str | None = None,
        own: str | None = None,
        replace: bool = False,
    ) -> None:
        """``via``: the program that labels in that name; a note, and no vote of its own. ``replace``: whether a label
        replaces another one of the same labeller."""
        self.by = f"{via}{_FOR}{name}" if via else name
        self._name, self._app, self._team, self._own, self._replace = name, app, team, own, replace

    def check(self, connection: Connection, wanted: Mapping[str, JSON]) -> dict[str, Assignable | ScanflowError]:
        """Return for each sample's id what its label would be recorded for, or why it cannot be.

        That is NotFoundError if there is nothing of that id; UsageError if there are several, or if the labeller gave
        it another label that is not to be replaced.
        """
        samples, votes = self._load_samples(connection, list(wanted)), _load_votes(connection, list(wanted))
        checked = dict[str, Assignable | ScanflowError]()
        for id, label in wanted.items():
            try:
                sample = self._choose(id, samples[id])
                own_votes = votes[sample.app, sample.team, id]
                checked[id] = Assignable(sample, label, own_votes, self._check_previous(id, label, own_votes))
            except ScanflowError as error:
                checked[id] = error
        return checked

    def assign(self, connection: Connection, id: str, label: JSON, *, at: float) -> AssignedLabel:
        """Record a label. Raises the error that :meth:`check` would return."""
        (checked,) = self.check(connection, {id: label}).values()
        if isinstance(checked, ScanflowError):
            raise checked
        (assigned,) = self.record(connection, [checked], at=at)
        return assigned

    def record(self, connection: Connection, checked: Sequence[Assignable], *, at: float) -> list[AssignedLabel]:
        """Record labels that were checked in the same transaction, of samples that differ."""
        new_votes, changes, assigned = list[dict[str, Any]](), list[dict[str, Any]](), list[AssignedLabel]()
        for item in checked:
            after = item.sample
            if not item.is_repeated:
                vote = Vote(by=self.by, label=item.label, at=at)
                after = _count_vote(item, vote)
                new_votes.append({"app": after.app, "team": after.team, "id": after.id} | vote.model_dump(mode="json"))
                changes.append(
                    {"of_app": after.app, "of_team": after.team, "of_id": after.id}
                    | after.model_dump(mode="json", include=_VOTED)
                )
            assigned.append(AssignedLabel(item.sample, after, item.previous))
        if new_votes:
            connection.execute(insert(votes_table), new_votes)
            connection.execute(_UPDATE, changes)
        return assigned

    def _load_samples(self, connection: Connection, ids: Sequence[str]) -> defaultdict[str, list[Label]]:
        samples = defaultdict[str, list[Label]](list)
        for part in split(ids, _IDS):
            where = labels.c.id.in_(part), _filter_visible(self._own)
            for sample in Label.load_all(connection, select(*_BRIEF).where(*where)):
                samples[sample.id].append(sample)
        return samples

    def _choose(self, id: str, samples: Sequence[Label]) -> Label:
        rows = [row for row in samples if self._app in {None, row.app}]
        rows = [row for row in rows if self._team is None or row.team in {self._team, ""}]
        rows = [row for row in rows if self._team and row.team == self._team] or rows
        if not rows:
            raise _make_not_found(id)
        if len(rows) > 1:
            raise UsageError(_describe_ambiguity(id, rows))
        return rows[0]

    def _check_previous(self, id: str, label: JSON, votes: Sequence[Vote]) -> JSON:
        previous = next((vote.label for vote in reversed(votes) if vote.voter == self._name), None)
        if previous is not None and not self._replace and _dump_label(previous) != _dump_label(label):
            raise UsageError(
                f"{self._name!r} has already labelled {id!r} as {previous!r}. Replace that label: "
                f"{_format_command(id, label, self._app, self._team)} --replace"
            )
        return previous


def _count_vote(item: Assignable, vote: Vote) -> Label:
    """Return the sample as it is with one more vote. Pure."""
    use, disputed = tally_votes([*item.votes, vote])
    changes: dict[str, Any] = {"state": "given", "by": use.by, "disputed": disputed}
    if item.sample.state == "wanted" or _dump_label(use.label) != _dump_label(item.sample.label):
        changes |= {"label": use.label, "given": vote.at}
    return item.sample.model_copy(update=changes)


def _match(app: str, team: str, id: str) -> ColumnElement[bool]:
    return and_(labels.c.app == app, labels.c.team == team, labels.c.id == id)


def _filter_visible(own: str | None) -> ColumnElement[bool]:
    """Select the samples visible to a team (None: all): its own, and those without a team of its own applications."""
    if own is None:
        return true()
    return or_(labels.c.team == own, and_(labels.c.team == "", labels.c.app.in_(select_exclusive_names(own))))


def _make_not_found(id: str) -> NotFoundError:
    return NotFoundError(f"The label queue has no sample {id!r}. List the samples: scanflow labels")


def _dump_label(label: JSON) -> str:
    """Return a label as JSON, for comparison: in Python ``True == 1``. A whole number is one however it is written."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return json.dumps(label, sort_keys=True)


def _describe_ambiguity(id: str, rows: list[Label]) -> str:
    where = sorted(f"{row.app}/{row.team}" if row.team else row.app for row in rows)
    apart = len({row.app for row in rows}) > 1
    team = "" if apart or not rows[-1].team else f" --team {rows[-1].team}"
    return (
        f"Several {'applications' if apart else 'teams'} have {id!r} in their queues: {', '.join(where)}. Choose one: "
        f"scanflow labels --app {rows[0].app}{team} --give {id}=LABEL"
    )


def _format_command(id: str, label: JSON, app: str | None, team: str | None) -> str:
    text = label if isinstance(label, str) and not _is_json(label) else json.dumps(label)
    which = "".join(f" --{name} {shlex.quote(value)}" for name, value in (("app", app), ("team", team)) if value)
    return f"scanflow labels{which} --give {shlex.quote(f'{id}={text}')}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _load_queued(
    connection: Connection, app: str, team: str, ids: Sequence[str], *, own: str | None
) -> dict[str, Label]:
    """Return the samples that are in a queue already, by id: the team's own rather than those of no team."""
    where = labels.c.app == app, labels.c.team.in_((team, "")), labels.c.id.in_(ids), _filter_visible(own)
    return {
        label.id: label for label in Label.load_all(connection, select(*_BRIEF).where(*where).order_by(labels.c.team))
    }
