"""Masks the secrets of applications in what is shown: records, events, plans and logs of runs and services.

The backends keep the values as they are: steps and services need them, and so does who resumes a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from scanflow.app.application import Application
from scanflow.app.application_files import dump_document
from scanflow.app.plan import Plan
from scanflow.backends.log_reader import LogPage, LogPart, LogReader, read_tail
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import Event, RunEnded, RunRecord, TaskEnded, TaskRecord, Waiting
from scanflow.text.masking import MaskedStream, Masker, mask_addresses, mask_place

if TYPE_CHECKING:
    from scanflow.backends.service_records import ServiceRecord

_DEFINITION = "definition"
MAX_RUNS: Final = 1024
LoadMasker = Callable[[], Masker]
"""Returns the masker of a run; it is called only where there is a text to mask."""


@lru_cache(maxsize=4)
def build_masker(definition: RunDefinition) -> Masker:
    """Return the masker of a run's secrets; kept, as definitions are when they are read again."""
    return Masker(*list_documents(definition))


def list_documents(definition: RunDefinition) -> list[Any]:
    """Return what may hold a run's secrets: its workflow with its application's addresses, its changed parameters."""
    app = definition.app.replace(workflows=(definition.workflow,), agents=())
    return [dump_document(app), dict(definition.parameters)]


def mask_run(record: RunRecord, load_masker: LoadMasker) -> RunRecord:
    if _DEFINITION in (record.model_extra or {}):  # earlier versions kept it there
        record = RunRecord.model_validate(record.model_dump(exclude={_DEFINITION}))
    if record.error is None and not any(map(_has_text, record.tasks)):
        return record
    masker = load_masker()
    error = None if record.error is None else masker.mask_text(record.error)
    return record.model_copy(update={"error": error, "tasks": tuple(_mask_task(task, masker) for task in record.tasks)})


class MaskedRuns:
    """Masks listed records of runs, and reads a run's definition for it only when its record is another than before."""

    def __init__(self, load_masker: Callable[[str], Masker]) -> None:
        """``load_masker`` maps a run's name to its masker."""
        self._load_masker = load_masker
        self._runs: dict[str, tuple[RunRecord, RunRecord]] = {}

    def mask(self, record: RunRecord) -> RunRecord:
        before, masked = self._runs.get(record.name, (None, record))
        if before != record:
            masked = mask_run(record, lambda: self._load_masker(record.name))
            if len(self._runs) >= MAX_RUNS:
                self._runs.clear()
            self._runs[record.name] = record, masked
        return masked


def mask_event(event: Event, load_masker: LoadMasker) -> Event:
    if isinstance(event, RunEnded):
        return event.model_copy(update={"record": mask_run(event.record, load_masker)})
    if isinstance(event, TaskEnded) and _has_text(event.record):
        return event.model_copy(update={"record": _mask_task(event.record, load_masker())})
    if isinstance(event, Waiting):
        return event.model_copy(update={"what": mask_addresses(event.what), "why": mask_addresses(event.why)})
    return event


def mask_service(record: ServiceRecord, masker: Masker) -> ServiceRecord:
    """Return a service's record with its application's secrets masked in its texts and in its tracker's address."""
    from scanflow.backends.service_records import mask_errors  # most commands are about runs

    tracker = None if record.tracker is None else mask_place(record.tracker)
    return mask_errors(record.model_copy(update={"tracker": tracker}), masker)


def mask_plan(plan: Plan, app: Application) -> Plan:
    """Return a plan with the application's secrets masked in the changes of a cluster's objects."""
    if not plan.objects:
        return plan
    masker = Masker(dump_document(app))
    objects = tuple(
        planned.model_copy(
            update={"fields": tuple(map(masker.mask_text, planned.fields)), "why": masker.mask_text(planned.why)}
        )
        for planned in plan.objects
    )
    return plan.model_copy(update={"objects": objects})


def mask_problem(problem: Mapping[str, Any], masker: Masker) -> dict[str, Any]:
    """Return a problem document with the secrets in its detail masked."""
    return {**problem, "detail": masker.mask_text(str(problem.get("detail", "")))}


class MaskedLogReader:
    """Reads a log with the secrets masked, those split between two pages too."""

    def __init__(self, reader: LogReader, masker: Masker) -> None:
        self._reader, self._masker = reader, masker
        self._streams: dict[str, MaskedStream] = {}

    def read(self) -> LogPage:
        page = self._reader.read()
        parts = [LogPart(part.source, self._get_stream(part.source).feed(part.data)) for part in page.parts]
        if page.ended:
            parts += [LogPart(source, stream.feed(b"", last=True)) for source, stream in self._streams.items()]
        # What is held back counts as read: a page without parts means that there is no more for now.
        shown = tuple(part for part in parts if part.data) or tuple(parts[:1])
        return LogPage(shown, page.ended)

    def close(self) -> None:
        self._reader.close()

    def _get_stream(self, source: str) -> MaskedStream:
        return self._streams.setdefault(source, MaskedStream(self._masker))


def mask_log(reader: LogReader, masker: Masker) -> LogReader:
    return MaskedLogReader(reader, masker)


def read_masked_tail(reader: LogReader, masker: Masker, n_bytes: int) -> bytes:
    """Return the end of a log of one source, about so many bytes, with the secrets masked.

    What precedes it is read only as far as it tells whether the end begins within a secret.
    """
    return b"".join(part.data for part in read_masked_tails(reader, masker, n_bytes))


def read_masked_tails(reader: LogReader, masker: Masker, n_bytes: int) -> list[LogPart]:
    """Return the same of a log of several sources, for each."""

    def mask(part: LogPart) -> LogPart:
        stream = MaskedStream(masker)
        stream.feed(part.data[:-n_bytes])
        return part._replace(data=stream.feed(part.data[-n_bytes:], last=True))

    return list(map(mask, read_tail(reader, n_bytes + MaskedStream(masker).margin)))


def _has_text(task: TaskRecord) -> bool:
    return task.failure is not None or task.cache_note is not None


def _mask_task(task: TaskRecord, masker: Masker) -> TaskRecord:
    if task.cache_note is not None:
        task = task.model_copy(update={"cache_note": masker.mask_text(task.cache_note)})
    if task.failure is None:
        return task
    failure = task.failure
    masked = failure.model_copy(
        update={
            "summary": masker.mask_text(failure.summary),
            "frames": tuple(map(masker.mask_text, failure.frames)),
            "cause": masker.mask_text(failure.cause),
        }
    )
    return task.model_copy(update={"failure": masked})
