"""Strategies over recorded samples: the same trace gives the same timeline, another rule a difference that is shown.

A trace is an agent's journal: what its sensors gave, and what its strategies wanted then. Strategies are asked again as
of the moment of each sample, so that what they decide depends on nothing but the trace and their code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.agent.actions import Call
from scanflow.agent.decide import Evaluation, Evaluator
from scanflow.agent.formatting import wanted
from scanflow.agent.records import Intent, Sample
from scanflow.errors import InvalidError


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Moment(_Frozen):
    """What one strategy made of one sample."""

    at: float
    sample: str
    sensor: str
    strategy: str
    held: bool
    rule: str = ""
    """The rule with the values it compared. Empty in a record, which tells it with each intent alone."""

    wants: tuple[str, ...] = ()
    """What it wanted, in words and in order: ``run_workflow(workflow="training")`` or ``checker.look(5)``."""

    error: str | None = None
    """Why the strategy could not decide."""

    sensor_error: str | None = None
    """Why there was nothing to decide on."""

    answers: tuple[str, ...] = ()
    """In a record: what was answered to what it wanted: ``act``, ``refuse``, ``taken``; as far as answers came."""

    @property
    def place(self) -> tuple[float, str, str]:
        return self.at, self.sample, self.strategy

    @property
    def decision(self) -> tuple[tuple[str, ...], str | None]:
        """What counts when two are compared. A rule that held and wanted nothing decided as one that did not hold."""
        return self.wants, self.error

    @property
    def outcome(self) -> str:
        if self.error is not None:
            return f"failed ({self.error})"
        return "; ".join(self.wants) or "nothing"


class Difference(_Frozen):
    """A moment at which two timelines decide otherwise."""

    kind: Literal["added", "removed", "changed"]
    """``added``: nothing was wanted before; ``removed``: nothing is wanted any more; ``changed``: something else is."""

    at: float
    sample: str
    sensor: str
    strategy: str
    before: str
    after: str

    @property
    def symbol(self) -> str:
        return {"added": "+", "removed": "-", "changed": "~"}[self.kind]

    def __str__(self) -> str:
        return f"{self.symbol} {self.at:.3f} {self.strategy}: {self.before} -> {self.after}"


class Trace(_Frozen):
    """What an agent's journal tells of its samples."""

    samples: tuple[Sample, ...] = ()
    moments: tuple[Moment, ...] = ()
    """What strategies wanted of them, or failed over. Those that wanted nothing leave no record."""

    def cut(self, *, since: float | None = None, last: int | None = None) -> Trace:
        """Return the part from a moment on, and of that the last so many samples."""
        kept = [one for one in self.samples if since is None or one.at >= since]
        kept = kept if last is None else kept[max(0, len(kept) - last) :]
        known = {one.id for one in kept}
        return Trace(samples=tuple(kept), moments=tuple(one for one in self.moments if one.sample in known))


def trace_of(entries: Iterable[Mapping[str, Any]]) -> Trace:
    """Return what the entries of a journal tell, the oldest first. Those whose sample is forgotten are left out."""
    samples: list[Sample] = []
    wants: dict[tuple[str, str], list[str]] = {}
    errors: dict[tuple[str, str], str] = {}
    answers: dict[str, str] = {}
    for number, entry in enumerate(entries, 1):
        try:
            kind, subject, body = str(entry["kind"]), str(entry["subject"]), entry["body"]
            if kind == "sample":
                samples.append(Sample.model_validate(body))
            elif kind == "decision":
                answers[body["key"]] = _answer(body["answer"])
            elif kind == "refused":
                answers[body["key"]] = f"given up: {body['error']}"
            elif not samples:  # the journal was trimmed between a sample and what was made of it
                continue
            elif kind == "error":
                errors[samples[-1].id, subject] = str(body["error"])
            elif kind in {"intent", "call"}:
                wants.setdefault((samples[-1].id, subject), []).append(_wanted(kind, body))
        except (KeyError, TypeError, ValidationError, InvalidError) as error:
            words = " ".join(str(error).split())
            raise InvalidError(f"The entry {number} of the journal cannot be read: {words:.300}") from error
    return Trace(samples=tuple(samples), moments=tuple(_recorded(samples, wants, errors, answers)))


def replay(evaluator: Evaluator, samples: Iterable[Sample]) -> list[Moment]:
    """Return what the strategies make of recorded samples, in the order of the samples. Nothing is done."""
    return [_moment(sample, found) for sample in samples for found in evaluator.evaluate(sample)]


def difference(before: Sequence[Moment], after: Sequence[Moment]) -> list[Difference]:
    """Return where two timelines over the same samples decide otherwise.

    A strategy that one of them does not have wanted nothing there."""
    old, new = ({moment.place: moment for moment in some} for some in (before, after))
    found: list[Difference] = []
    for place in sorted(old.keys() | new.keys()):
        moment = new.get(place) or old[place]
        nothing = moment.model_copy(update={"held": False, "wants": (), "error": None})
        was, now = old.get(place, nothing), new.get(place, nothing)
        if was.decision == now.decision:
            continue
        kind: Literal["added", "removed", "changed"] = "changed"
        if nothing.decision in {was.decision, now.decision}:
            kind = "added" if was.decision == nothing.decision else "removed"
        about = {name: getattr(moment, name) for name in ("at", "sample", "sensor", "strategy")}
        found.append(Difference(kind=kind, before=was.outcome, after=now.outcome, **about))
    return found


def _moment(sample: Sample, found: Evaluation) -> Moment:
    return Moment(
        at=sample.at,
        sample=sample.id,
        sensor=sample.sensor,
        strategy=found.strategy,
        held=found.held,
        rule=found.rule,
        wants=tuple(wanted(want) for want in found.wants),
        error=found.error if sample.error is None else None,
        sensor_error=sample.error,
    )


def _recorded(
    samples: Iterable[Sample],
    wants: Mapping[tuple[str, str], Sequence[str]],
    errors: Mapping[tuple[str, str], str],
    answers: Mapping[str, str],
) -> Iterator[Moment]:
    strategies: dict[str, list[str]] = {}
    for sample_id, strategy in dict.fromkeys([*wants, *errors]):
        strategies.setdefault(sample_id, []).append(strategy)
    for sample in samples:
        for strategy in strategies.get(sample.id, ()):
            place = (sample.id, strategy)
            key = f"{sample.agent}/{strategy}/{sample.cause}"
            keys = [key if number == 1 else f"{key}/{number}" for number in range(1, len(wants.get(place, ())) + 1)]
            yield Moment(
                at=sample.at,
                sample=sample.id,
                sensor=sample.sensor,
                strategy=strategy,
                held=place in wants,
                wants=tuple(wants.get(place, ())),
                error=errors.get(place),
                sensor_error=sample.error,
                answers=tuple(answers[one] for one in keys if one in answers),
            )


def _wanted(kind: str, body: Mapping[str, Any]) -> str:
    if kind == "intent":
        return wanted(Intent.model_validate(body))
    return wanted(Call(agent=body["agent"], sensor=body["sensor"], args=body["args"], kwargs=body["kwargs"]))


def _answer(answer: Any) -> str:
    return str(answer["verdict"]) if isinstance(answer, Mapping) and "verdict" in answer else "taken"
