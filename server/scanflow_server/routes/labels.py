"""Routes of the label queue: samples that agents want labelled, and their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter
from sqlalchemy import Connection

from scanflow.agent.records import JSON
from scanflow.errors import InvalidError, ScanflowError, UsageError
from scanflow_server.access import TokenHolder
from scanflow_server.api_route import ApiRoute
from scanflow_server.auth import Proposer, Reader
from scanflow_server.bodies import Named, Text, check_text
from scanflow_server.context import ContextDep
from scanflow_server.problems import PROBLEMS
from scanflow_server.scope import restrict_team
from scanflow_server.store import events, usage
from scanflow_server.store import labels as label_store
from scanflow_server.store.labels import Label, LabelCandidate, LabelState

router = APIRouter(prefix="/labels", tags=["labels"], responses=PROBLEMS, route_class=ApiRoute)

_MAX_ITEMS = 10_000
_MAX_OFFSET = 2**31 - 1
_MAX_LENGTH = 128
_MAX_SHOWN = 10
_PART = 50
"""How many samples are written by one statement, which takes 2 ms."""

_LABEL_LIST: TypeAdapter[list[Label]] = TypeAdapter(list[Label])


class SelectedSamplesBody(BaseModel):
    """Samples that an agent wants labelled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    app: Annotated[Text, Field(min_length=1, max_length=_MAX_LENGTH)]
    team: Annotated[Text, Field(max_length=_MAX_LENGTH)] = ""
    """The team of the queue. Empty: any team of the application."""

    items: Annotated[list[LabelCandidate], Field(max_length=_MAX_ITEMS)]


def _refuse_null(label: JSON) -> JSON:
    if label is None:
        raise InvalidError("null is not a label. Leave out samples that nobody can label; they stay in the queue.")
    return label


class _Labels(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    via: Annotated[Text, Field(max_length=_MAX_LENGTH)] = ""
    """The program that labelled the sample, if no person did; it is recorded with the caller."""

    app: Annotated[Text | None, Field(max_length=_MAX_LENGTH)] = None
    """The application of the queue; needed only if several have a sample of that id."""

    team: Annotated[Text | None, Field(max_length=_MAX_LENGTH)] = None
    """The team of the queue; needed only if several have a sample of that id."""

    replace: bool = False
    """Whether to replace the labeller's previous label. Models trained on that stay as they are."""


_Body = TypeVar("_Body", bound=_Labels)


class LabelBody(_Labels):
    """A label. The request's token identifies the labeller."""

    label: Annotated[JSON, AfterValidator(_refuse_null)]


class LabelEntry(BaseModel):
    """One label of several."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[Text, Field(min_length=1, max_length=256)]
    label: Annotated[JSON, AfterValidator(_refuse_null)]
    line: int | None = Field(default=None, ge=1)
    """Its line in a file, for error messages."""


class LabelsBody(_Labels):
    """Labels that are recorded all together, or not at all."""

    labels: Annotated[list[LabelEntry], Field(max_length=_MAX_ITEMS)]


Id = Annotated[str, Path(min_length=1, max_length=256)]


@router.post("", status_code=201, response_model=list[Label])
def want(context: ContextDep, caller: Proposer, picked: SelectedSamplesBody) -> Response:
    """Add samples to the queue; existing ones are not changed, and keep their labels."""
    check_text(picked.model_dump(mode="json"))
    team = picked.team or caller.team or ""
    caller.check("propose", team)
    caller.check_agent(picked.app)
    at = context.clock()
    with context.store.read() as connection:
        n_bytes = sum(map(label_store.measure_sample, picked.items))
        usage.check(connection, team, n_bytes, max_mib=context.settings.max_team_mib)

    def add(connection: Connection, items: Sequence[LabelCandidate]) -> list[Label]:
        return label_store.enqueue(connection, picked.app, items, at=at, team=team, own=caller.team)

    parts = [picked.items[start : start + _PART] for start in range(0, len(picked.items), _PART)]
    return _make_response([label for part in context.store.write_in_slices(parts, add) for label in part], 201)


def _make_response(shown: list[Label], status: int) -> Response:
    """Return the response with many labels as JSON, which would be made of them in the event loop."""
    return Response(_LABEL_LIST.dump_json(shown), status, media_type="application/json")


@router.get("")
def labels(
    context: ContextDep,
    caller: Reader,
    app: Named = None,
    team: Named = None,
    state: LabelState | None = None,
    disputed: bool | None = None,
    details: bool = False,
    limit: Annotated[int, Query(ge=1, le=_MAX_ITEMS)] = 100,
    offset: Annotated[int, Query(ge=0, le=_MAX_OFFSET)] = 0,
) -> list[Label]:
    """List samples without a label, the most critical first, or labelled ones, the last labelled first, skipping the
    first ``offset``. ``disputed``: only those with different labels. ``details``: with row or picture, and all labels.

    Who asks for given labels a part after the other gets all of them: one given meanwhile moves the others on, so that
    some come twice and none is left out.
    """
    with context.store.read() as connection:
        return label_store.list_labels(
            connection,
            app=app,
            team=restrict_team(caller, team),
            own=caller.team,
            state=state,
            disputed=disputed,
            details=details,
            limit=limit,
            offset=offset,
        )


@router.post("/{id:path}")
def give(context: ContextDep, caller: Proposer, id: Id, body: LabelBody) -> Label:
    """Label a sample. Repeating the same label changes nothing; a different one by the same labeller is refused, unless
    it is to replace the first. Labels of other labellers are votes: the one with the most votes is in use, then the
    newest."""
    check_text([id, body.label])
    body = _restrict_app(body, caller)
    with context.store.write() as connection:
        return record_label(connection, id, body.label, body, caller, at=context.clock())


@router.patch("", response_model=list[Label])
def give_all(context: ContextDep, caller: Proposer, body: LabelsBody) -> Response:
    """Label many samples, each as if it were the only one; if one label is invalid, none is recorded."""
    check_text([[item.id, item.label] for item in body.labels])
    body = _restrict_app(body, caller)
    at = context.clock()
    with context.store.read() as connection:
        _check_votes(connection, body, caller)
    errors = list[ScanflowError]()

    def record(connection: Connection, item: LabelEntry) -> _RecordedLabel | None:
        try:
            return _record_vote(connection, item.id, item.label, body, caller, at=at)
        except ScanflowError as error:  # it was labelled since it was checked
            errors.append(_name_line(item, error))
            return None

    def tell(connection: Connection, written: list[_RecordedLabel | None]) -> None:
        _record_events(connection, filter(None, written), at)

    results = context.store.write_in_slices(body.labels, record, finish=tell)
    if errors:
        lines = "\n".join(f"- {error}" for error in errors[:_MAX_SHOWN])
        done = len(body.labels) - len(errors)
        raise UsageError(f"{done} labels were recorded, and {len(errors)} not, as they changed meanwhile:\n{lines}")
    return _make_response([recorded.label for recorded in filter(None, results)], 200)


def _check_votes(connection: Connection, body: LabelsBody, caller: TokenHolder) -> None:
    """Check that each label can be recorded. Raises one error for all that cannot."""
    errors, seen = list[ScanflowError](), dict[str, LabelEntry]()
    for item in body.labels:
        try:
            if (before := seen.setdefault(item.id, item)) is not item:
                first = "" if before.line is None else f", the first time in line {before.line}"
                raise UsageError(f"{item.id!r} occurs twice{first}. Keep one.")
            label_store.check_assignable(
                connection, item.id, label=item.label, replace=body.replace, **_describe_voter(body, caller)
            )
        except ScanflowError as error:
            errors.append(_name_line(item, error))
    if errors:
        raise _combine_errors(errors)


def _name_line(item: LabelEntry, error: ScanflowError) -> ScanflowError:
    return type(error)(f"{'' if item.line is None else f'line {item.line}: '}{error}")


def _describe_voter(how: _Labels, caller: TokenHolder) -> dict[str, Any]:
    """Return who labels, and of which samples."""
    return {
        "by": f"{how.via}, for {caller.name}" if how.via else caller.name,
        "app": how.app,
        "team": restrict_team(caller, how.team),
        "own": caller.team,
    }


def record_label(
    connection: Connection, id: str, label: JSON, how: _Labels, caller: TokenHolder, *, at: float
) -> Label:
    """Record a label of one sample, with its event."""
    recorded = _record_vote(connection, id, label, how, caller, at=at)
    _record_event(connection, recorded, at)
    return recorded.label


def _restrict_app(body: _Body, caller: TokenHolder) -> _Body:
    """Return labels for the queue of the caller's application, if its token is an agent's own."""
    if caller.agent is None:
        return body
    caller.check_agent(body.app or caller.agent[0])
    return body.model_copy(update={"app": caller.agent[0]})


class _RecordedLabel(NamedTuple):
    label: Label
    type: str | None
    """The event type. None: the label was the same."""

    data: dict[str, JSON]


def _record_vote(
    connection: Connection, id: str, label: JSON, how: _Labels, caller: TokenHolder, *, at: float
) -> _RecordedLabel:
    voter = _describe_voter(how, caller)
    before, after, own = label_store.assign(connection, id, label=label, at=at, replace=how.replace, **voter)
    data: dict[str, JSON] = {"id": id, "run": after.run, "label": label, "by": voter["by"]}
    data |= {} if own is None else {"before": own}
    data |= {"in_use": after.label, "in_use_by": after.by} if after.disputed else {}
    type = None if before is after else "label.added" if own is None else "label.replaced"
    return _RecordedLabel(after, type, data)


def _record_event(connection: Connection, recorded: _RecordedLabel, at: float) -> None:
    if recorded.type is not None:
        label = recorded.label
        team = label.team or None
        events.record(
            connection, recorded.type, f"label/{label.id}", at=at, app=label.app, team=team, data=recorded.data
        )


def _record_events(connection: Connection, recorded_labels: Iterable[_RecordedLabel], at: float) -> None:
    """Record one event per label that replaces or disputes another, and one per queue for all others."""
    counts = Counter[tuple[str, str, str]]()
    for recorded in recorded_labels:
        if recorded.type == "label.added" and not recorded.label.disputed:
            counts[recorded.label.app, recorded.label.team, str(recorded.data["by"])] += 1
        else:
            _record_event(connection, recorded, at)
    for (app, team, by), count in counts.items():
        data = {"count": count, "by": by}
        events.record(connection, "labels.given", "labels", at=at, app=app, team=team or None, data=data)


def _combine_errors(errors: Sequence[ScanflowError]) -> ScanflowError:
    if len(errors) == 1:
        return errors[0]
    more = [f"and {len(errors) - _MAX_SHOWN} more"] if len(errors) > _MAX_SHOWN else []
    lines = "\n".join(f"- {line}" for line in [*map(str, errors[:_MAX_SHOWN]), *more])
    return UsageError(f"None of these labels was recorded, as {len(errors)} of them are invalid:\n{lines}")
