"""Routes of the label queue: samples that agents want labelled, and their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple, TypeVar

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter
from sqlalchemy import Connection

from scanflow.agent.agent_records import JSON
from scanflow.errors import InvalidError, ScanflowError, UsageError
from scanflow_server.api_route import ApiRoute
from scanflow_server.auth import Proposer, Reader
from scanflow_server.bodies import Named, Text, check_text
from scanflow_server.request_problems import PROBLEMS
from scanflow_server.scope import restrict_team
from scanflow_server.server_context import ContextDep
from scanflow_server.store import event_store, label_store, usage
from scanflow_server.store.base import split
from scanflow_server.store.label_store import Assignable, AssignedLabel, Label, LabelCandidate, Labeller, LabelState
from scanflow_server.token_roles import TokenHolder

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
    """The program that labelled the sample, if no person did; it is noted with the caller, whose vote it is."""

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
def add_samples(context: ContextDep, caller: Proposer, picked: SelectedSamplesBody) -> Response:
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

    written = context.store.write_in_slices(split(picked.items, _PART), add)
    return _make_response([label for part in written for label in part], 201)


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
    at, labeller = context.clock(), _make_labeller(body, caller)
    with context.store.read() as connection:
        _check_labels(connection, body, labeller)
    errors = list[ScanflowError]()

    def record(connection: Connection, part: Sequence[LabelEntry]) -> list[_RecordedLabel]:
        checked = labeller.check(connection, {item.id: item.label for item in part})
        for item in part:  # it may have been labelled since it was checked
            if isinstance(result := checked[item.id], ScanflowError):
                errors.append(_name_line(item, result))
        assignable = [item for item in checked.values() if isinstance(item, Assignable)]
        assigned = labeller.record(connection, assignable, at=at)
        return [
            _RecordedLabel(item, label.label, labeller.by) for item, label in zip(assigned, assignable, strict=True)
        ]

    def tell(connection: Connection, parts: list[list[_RecordedLabel]]) -> None:
        _record_events(connection, (recorded for part in parts for recorded in part), at)

    written = context.store.write_in_slices(split(body.labels, _PART), record, finish=tell)
    results = [recorded for part in written for recorded in part]
    if errors:
        lines = "\n".join(f"- {error}" for error in errors[:_MAX_SHOWN])
        raise UsageError(
            f"{len(results)} labels were recorded, and {len(errors)} not, as they changed meanwhile:\n{lines}"
        )
    return _make_response([recorded.assigned.after for recorded in results], 200)


def _check_labels(connection: Connection, body: LabelsBody, labeller: Labeller) -> None:
    """Check that each label can be recorded. Raises one error for all that cannot."""
    first = dict[str, LabelEntry]()
    for item in body.labels:
        first.setdefault(item.id, item)
    checked = labeller.check(connection, {item.id: item.label for item in first.values()})
    errors = list[ScanflowError]()
    for item in body.labels:
        if (before := first[item.id]) is not item:
            place = "" if before.line is None else f", the first time in line {before.line}"
            errors.append(_name_line(item, UsageError(f"{item.id!r} occurs twice{place}. Keep one.")))
        elif isinstance(result := checked[item.id], ScanflowError):
            errors.append(_name_line(item, result))
    if errors:
        raise _combine_errors(errors)


def _name_line(item: LabelEntry, error: ScanflowError) -> ScanflowError:
    return type(error)(f"{'' if item.line is None else f'line {item.line}: '}{error}")


def _make_labeller(how: _Labels, caller: TokenHolder) -> Labeller:
    return Labeller(
        caller.name,
        via=how.via,
        app=how.app,
        team=restrict_team(caller, how.team),
        own=caller.team,
        replace=how.replace,
    )


def record_label(
    connection: Connection, id: str, label: JSON, how: _Labels, caller: TokenHolder, *, at: float
) -> Label:
    """Record a label of one sample, with its event."""
    labeller = _make_labeller(how, caller)
    recorded = _RecordedLabel(labeller.assign(connection, id, label, at=at), label, labeller.by)
    _record_event(connection, recorded, at)
    return recorded.assigned.after


def _restrict_app(body: _Body, caller: TokenHolder) -> _Body:
    """Return labels for the queue of the caller's application, if its token is an agent's own."""
    if caller.agent is None:
        return body
    caller.check_agent(body.app or caller.agent[0])
    return body.model_copy(update={"app": caller.agent[0]})


class _RecordedLabel(NamedTuple):
    assigned: AssignedLabel
    label: JSON
    by: str

    @property
    def event_type(self) -> str | None:
        """None: the label was the same."""
        if self.assigned.before is self.assigned.after:
            return None
        return "label.added" if self.assigned.previous is None else "label.replaced"

    @property
    def event_data(self) -> dict[str, JSON]:
        after, previous = self.assigned.after, self.assigned.previous
        data: dict[str, JSON] = {"id": after.id, "run": after.run, "label": self.label, "by": self.by}
        data |= {} if previous is None else {"before": previous}
        return data | ({"in_use": after.label, "in_use_by": after.by} if after.disputed else {})


def _record_event(connection: Connection, recorded: _RecordedLabel, at: float) -> None:
    if (type := recorded.event_type) is not None:
        label = recorded.assigned.after
        team = label.team or None
        event_store.record(
            connection, type, f"label/{label.id}", at=at, app=label.app, team=team, data=recorded.event_data
        )


def _record_events(connection: Connection, recorded_labels: Iterable[_RecordedLabel], at: float) -> None:
    """Record one event per label that replaces or disputes another, and one per queue for all others."""
    counts = Counter[tuple[str, str, str]]()
    for recorded in recorded_labels:
        after = recorded.assigned.after
        if recorded.event_type == "label.added" and not after.disputed:
            counts[after.app, after.team, recorded.by] += 1
        else:
            _record_event(connection, recorded, at)
    for (app, team, by), count in counts.items():
        data = {"count": count, "by": by}
        event_store.record(connection, "labels.given", "labels", at=at, app=app, team=team or None, data=data)


def _combine_errors(errors: Sequence[ScanflowError]) -> ScanflowError:
    if len(errors) == 1:
        return errors[0]
    more = [f"and {len(errors) - _MAX_SHOWN} more"] if len(errors) > _MAX_SHOWN else []
    lines = "\n".join(f"- {line}" for line in [*map(str, errors[:_MAX_SHOWN]), *more])
    return UsageError(f"None of these labels was recorded, as {len(errors)} of them are invalid:\n{lines}")
