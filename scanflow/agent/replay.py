"""Replay strategies over recorded samples, and compare the timelines.

A trace is the part of an agent's journal with samples and the intents of its strategies. Strategies are evaluated as of
the time of each sample, so that the result depends only on the trace and their code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.agent.actions import Call
from scanflow.agent.agent_records import Intent, Sample
from scanflow.agent.decide import Evaluation, Evaluator, FunctionCall
from scanflow.agent.formatting import describe_action
from scanflow.errors import InvalidError


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StrategyEvaluation(_Frozen):
    """The evaluation of one strategy on one sample."""

    at: float
    sample: str
    sensor: str
    strategy: str
    held: bool
    rule: str = ""
    """The rule and the values it compared. Empty for recorded moments: the journal stores it in each intent."""

    actions: tuple[str, ...] = ()
    """Its actions as text, in order: ``run_workflow(workflow="training")`` or ``checker.look(5)``."""

    not_called: tuple[str, ...] = ()
    """Its functions that do something themselves, with what: a replay does not call them."""

    error: str | None = None
    """Why the evaluation failed."""

    sensor_error: str | None = None
    """Why the sample has no value."""

    verdicts: tuple[str, ...] = ()
    """For recorded moments: the verdicts on its actions, ``act``, ``refuse``, ``taken``, if any."""

    @property
    def place(self) -> tuple[float, str, str]:
        return self.at, self.sample, self.strategy

    @property
    def decision(self) -> tuple[tuple[str, ...], str | None]:
        """The value :func:`compare_moments` compares. A rule that held without actions equals one that did not hold."""
        return self.actions, self.error

    @property
    def outcome(self) -> str:
        if self.error is not None:
            return f"failed ({self.error})"
        return "; ".join(self.actions) or "nothing"


class Difference(_Frozen):
    """A moment at which two timelines differ."""

    kind: Literal["added", "removed", "changed"]
    """``added``: no actions before; ``removed``: no actions after; ``changed``: other actions."""

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
    """The samples of an agent's journal and their evaluations."""

    samples: tuple[Sample, ...] = ()
    moments: tuple[StrategyEvaluation, ...] = ()
    """Evaluations with actions or an error; the others are not recorded."""

    def cut(self, *, since: float | None = None, last: int | None = None) -> Trace:
        """Return the samples since a time; with ``last``, only that many of the newest."""
        samples = [sample for sample in self.samples if since is None or sample.at >= since]
        samples = samples if last is None else samples[max(0, len(samples) - last) :]
        ids = {sample.id for sample in samples}
        return Trace(samples=tuple(samples), moments=tuple(moment for moment in self.moments if moment.sample in ids))


def build_trace(entries: Iterable[Mapping[str, Any]]) -> Trace:
    """Build a trace from the entries of a journal, the oldest first. Entries without their sample are skipped."""
    samples: list[Sample] = []
    actions: dict[tuple[str, str], list[str]] = {}
    errors: dict[tuple[str, str], str] = {}
    verdicts: dict[str, str] = {}
    inner: dict[str, int] = {}
    """How many requests of a strategy's function follow."""

    for number, entry in enumerate(entries, 1):
        try:
            kind, subject, body = str(entry["kind"]), str(entry["subject"]), entry["body"]
            if kind == "sample":
                samples.append(Sample.model_validate(body))
                inner.clear()
            elif kind == "decision":
                verdicts[body["key"]] = _format_answer(body["answer"])
            elif kind == "refused":
                verdicts[body["key"]] = f"given up: {body['error']}"
            elif not samples:  # the journal was trimmed between a sample and its evaluation
                continue
            elif kind == "error":
                errors[samples[-1].id, subject] = str(body["error"])
            elif kind in {"intent", "call", "function", "withheld"}:
                if inner.get(subject):  # a function requested it, which a replay does not call
                    inner[subject] -= 1
                    continue
                actions.setdefault((samples[-1].id, subject), []).append(_describe_entry(kind, body))
                if kind == "function":
                    inner[subject] = int(body["requested"])
                elif kind == "withheld":
                    verdicts[body["key"]] = f"withheld: {body['reason']}"
        except (KeyError, TypeError, ValidationError, InvalidError) as error:
            words = " ".join(str(error).split())
            raise InvalidError(f"The entry {number} of the journal cannot be read: {words:.300}") from error
    return Trace(samples=tuple(samples), moments=tuple(_build_recorded_moments(samples, actions, errors, verdicts)))


def replay(evaluator: Evaluator, samples: Iterable[Sample]) -> list[StrategyEvaluation]:
    """Evaluate strategies on recorded samples, in order, without acting: functions with effects are not called."""
    return [_build_moment(sample, evaluation) for sample in samples for evaluation in evaluator.evaluate(sample)]


def compare_moments(before: Sequence[StrategyEvaluation], after: Sequence[StrategyEvaluation]) -> list[Difference]:
    """Return where two timelines over the same samples differ.

    A strategy that is in one timeline only counts as one without actions in the other."""
    old, new = ({moment.place: moment for moment in moments} for moments in (before, after))
    differences: list[Difference] = []
    for place in sorted(old.keys() | new.keys()):
        moment = new.get(place) or old[place]
        nothing = moment.model_copy(update={"held": False, "actions": (), "error": None})
        was, now = old.get(place, nothing), new.get(place, nothing)
        if was.decision == now.decision:
            continue
        kind: Literal["added", "removed", "changed"] = "changed"
        if nothing.decision in {was.decision, now.decision}:
            kind = "added" if was.decision == nothing.decision else "removed"
        about = {name: getattr(moment, name) for name in ("at", "sample", "sensor", "strategy")}
        differences.append(Difference(kind=kind, before=was.outcome, after=now.outcome, **about))
    return differences


def _build_moment(sample: Sample, evaluation: Evaluation) -> StrategyEvaluation:
    return StrategyEvaluation(
        at=sample.at,
        sample=sample.id,
        sensor=sample.sensor,
        strategy=evaluation.strategy,
        held=evaluation.held,
        rule=evaluation.rule,
        actions=tuple(describe_action(action) for action in evaluation.actions),
        not_called=tuple(
            f"{action.name}: {action.effect}" for action in evaluation.actions if isinstance(action, FunctionCall)
        ),
        error=evaluation.error if sample.error is None else None,
        sensor_error=sample.error,
    )


def _build_recorded_moments(
    samples: Iterable[Sample],
    actions: Mapping[tuple[str, str], Sequence[str]],
    errors: Mapping[tuple[str, str], str],
    verdicts: Mapping[str, str],
) -> Iterator[StrategyEvaluation]:
    strategies: dict[str, list[str]] = {}
    for sample_id, strategy in dict.fromkeys([*actions, *errors]):
        strategies.setdefault(sample_id, []).append(strategy)
    for sample in samples:
        for strategy in strategies.get(sample.id, ()):
            place = (sample.id, strategy)
            key = f"{sample.agent}/{strategy}/{sample.cause}"
            keys = [key if number == 1 else f"{key}/{number}" for number in range(1, len(actions.get(place, ())) + 1)]
            yield StrategyEvaluation(
                at=sample.at,
                sample=sample.id,
                sensor=sample.sensor,
                strategy=strategy,
                held=place in actions,
                actions=tuple(actions.get(place, ())),
                error=errors.get(place),
                sensor_error=sample.error,
                verdicts=tuple(verdicts[intent] for intent in keys if intent in verdicts),
            )


def _describe_entry(kind: str, body: Mapping[str, Any]) -> str:
    if kind in {"function", "withheld"}:
        return str(body["requests"])
    if kind == "intent":
        return describe_action(Intent.model_validate(body))
    return describe_action(Call(agent=body["agent"], sensor=body["sensor"], args=body["args"], kwargs=body["kwargs"]))


def _format_answer(answer: Any) -> str:
    return str(answer["verdict"]) if isinstance(answer, Mapping) and "verdict" in answer else "taken"
