"""A search for how a service does best, on this machine or where it is deployed: made ready, carried out, and kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from scanflow.app.service import Service
from scanflow.backends.shapes import shape_of
from scanflow.errors import InvalidError, MissingExtraError, NotFoundError, UnavailableError, UsageError
from scanflow.loading import load_application
from scanflow.placement.topology import Core, NumaNode, Topology
from scanflow.tuning.candidates import Candidate, SearchSpace, candidate_of
from scanflow.tuning.goals import Goal
from scanflow.tuning.result import Trial, TuningResult
from scanflow.tuning.study import SearchStep, Study
from scanflow.tuning.warm_start import TuningHistory
from scanflow_client.formatting.tune import candidate_text
from scanflow_client.placed import bound_grants
from scanflow_client.service_load import load_plan
from scanflow_client.tuning_history import TuningHistories, served_versions

if TYPE_CHECKING:
    from scanflow.app.application import Application
    from scanflow.app.resources import AffinityMode
    from scanflow.app.workflow import Workflow, WorkflowType
    from scanflow.backends.service_records import ServiceObserver, ServiceRecord, Shape
    from scanflow.deployer import Deployer
    from scanflow.knowledge.port import KnowledgeBase
    from scanflow.knowledge.records import TrackedRun
    from scanflow.load.load import LoadPlan
    from scanflow_client.predict_io import HttpRequest

TRIALS_FILE = "trials.jsonl"
TUNED_TAG = "scanflow.tuned"
"""Of a model's version: the candidate that was best for it, and by how much, as JSON."""

RequestOf = Callable[[str], "HttpRequest | Sequence[HttpRequest]"]
"""Return the request that is sent to a service of that name, or several that are sent in turn."""


@dataclass(frozen=True, kw_only=True)
class TuningTarget:
    """What is tuned."""

    app: Application
    workflow: Workflow
    source: Path | None
    record: ServiceRecord | None = None
    """The service, where it is deployed."""

    @classmethod
    def of(cls, where: Deployer, target: str, *, types: Sequence[WorkflowType] = ("online",)) -> TuningTarget:
        """Return a deployed service by its name, or a workflow of these types by ``app.py:NAME``.

        Raises:
            NotFoundError: there is neither.
            UsageError: the service is deployed from what is not there any more.
        """
        services = {one.name: one for one in where.services(instances=False)}
        record = services.get(target)
        if record is not None and record.source is None:
            raise UsageError(
                f"Nobody knows which file {target!r} was deployed from. Name it: scanflow tune app.py:{target}"
            )
        file = target if record is None else f"{record.source}:{target}"
        try:
            app, path, name = load_application(file)
        except NotFoundError as error:
            advice = f"There is no service {target!r} either: scanflow services"
            raise NotFoundError(f"{error} {advice if record is None else 'Deploy it again.'}") from error
        fitting = [one for one in app.workflows if one.type in types]
        workflow = app.workflow(fitting[0].name if name is None and len(fitting) == 1 else name)
        if workflow.type not in types:
            kinds = " or ".join(types)
            raise InvalidError(f"{workflow.name!r} is a {workflow.type} workflow. Name one of type {kinds}.")
        served = services.get(workflow.name)
        if served is None or (served.app, served.team) != (app.name, app.team):
            return cls(app=app, workflow=workflow, source=path)
        workflow = workflow_as_served(workflow, served)
        return cls(app=app, workflow=workflow, source=path, record=served)

    @property
    def shape(self) -> Shape:
        """How it is served, or would be."""
        return shape_of(self.workflow) if self.record is None else self.record.shape


def workflow_as_served(workflow: Workflow, record: ServiceRecord) -> Workflow:
    """Return a workflow with the versions of models that its service answers with now, whatever its file names."""
    models = {} if record.current is None else record.current.models
    nodes = [
        node.replace(model=models[node.name]) if isinstance(node, Service) and node.name in models else node
        for node in workflow.nodes
    ]
    return workflow.replace(nodes=nodes)


def find_history(
    knowledge: Callable[[], KnowledgeBase], home: Path, target: TuningTarget, goal: Goal
) -> TuningHistory | None:
    """Return what a search of a service may begin from; None: nothing is known, or there is no tracker.

    Args:
        knowledge: Opens the tracker; it is called where the service has a model of the registry.
        home: Where models' files are cached.
        target: What is tuned.
        goal: Of the search.
    """
    if all(node.model is None for node in target.workflow.services):
        return None
    try:
        return TuningHistories(knowledge(), home).find(target.workflow, goal)
    except (MissingExtraError, UnavailableError):
        return None


@dataclass(frozen=True, kw_only=True)
class TuningBudget:
    trials: int = 20
    """Candidates to measure at most."""

    minutes: float = 15.0

    def __post_init__(self) -> None:
        if self.trials < 1 or not 0 < self.minutes <= 24 * 60:
            raise InvalidError("A search has a trial at least, and at most a day: --trials 20 --minutes 15")


@dataclass(frozen=True, kw_only=True)
class TuningReport:
    target: TuningTarget
    result: TuningResult
    cores: int

    def _repr_html_(self) -> str:
        from scanflow_client.formatting.tune import tuning_html

        return tuning_html(self)

    def summary(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        found = self.result
        comparison = found.comparison
        return {
            "service": self.target.workflow.name,
            "goal": found.goal.name,
            "p99_s": found.goal.p99_s,
            "cores": self.cores,
            "default": asdict(found.default),
            "best": asdict(found.best),
            "winner": None if found.winner is None else asdict(found.winner),
            "comparison": None if comparison is None else asdict(comparison),
            "candidates": found.exhaustive,
            "trials": [asdict(one) for one in found.trials],
            "fresh": None if found.fresh is None else asdict(found.fresh),
            "repeated": found.repeated,
            "disturbed": found.disturbed,
            "interrupted": found.interrupted,
            "history": None
            if found.history is None
            else {
                "source": found.history.source,
                "valid": found.is_history_valid,
                "trials": found.history.trials,
                "saved_trials": found.saved_trials,
            },
        }


def search_space(
    target: TuningTarget,
    machine: Topology,
    services: Sequence[ServiceRecord],
    *,
    cores: int | None,
    batches: Sequence[int],
) -> tuple[SearchSpace, Candidate]:
    """Return what may be tried, and the service as it is. ``cores``: the budget; None: what the service has, and where
    that is not said, all cores that are free.

    Raises:
        InvalidError: the machine has no room for a copy of the service, or the budget is none.
    """
    shape = target.shape
    beside = bound_grants(services)
    free = machine.effective_count - math.ceil(sum(grant.cores for grant in beside))
    own = None if shape.cores is None else max(1, shape.instances) * shape.cores
    budget = cores if cores is not None else free if own is None else math.floor(own)
    if not 1 <= budget <= free:
        raise InvalidError(
            f"A copy of {target.workflow.name!r} with {budget} cores has no room: {free} of {machine.effective_count} "
            "are free beside the services that run. Say how many it may have (--cores 2), or delete or scale down "
            "another service meanwhile."
        )
    space = SearchSpace(topology=machine, cores=budget, beside=tuple(beside), batches=tuple(batches))
    default = candidate_of(shape, budget)
    if space.placed(default) is None:
        raise InvalidError(
            f"There is no room for a copy of {target.workflow.name!r} as it is beside the services that run. Delete "
            "or scale down another service meanwhile."
        )
    return space, default


POD_AFFINITIES: tuple[AffinityMode, ...] = ("any", "cpu")
"""Of pods: shared CPUs, or whole ones of their own by the kubelet's static policy."""


def cluster_space(target: TuningTarget, *, cores: int | None, batches: Sequence[int]) -> tuple[SearchSpace, Candidate]:
    """Return what may be tried of a service on a cluster, and the service as it is: replicas times cores of pods.

    ``cores``: the budget; None: what the service's pods have together. Which node has room is the scheduler's to say: a
    candidate whose pods do not start has failed.

    Raises:
        InvalidError: the budget is not known.
    """
    shape = target.shape
    if cores is None and shape.cores is None:
        raise InvalidError(f"Nobody said how many cores {target.workflow.name!r} may have. Say it: --cores 2")
    budget = cores if cores is not None else math.floor(max(1, shape.instances) * (shape.cores or 1))
    if budget < 1:
        raise InvalidError(f"{target.workflow.name!r} has less than a core, which cannot be cut. Give more: --cores 2")
    own = math.ceil(max(1, shape.instances) * (shape.cores or budget))
    cpus = tuple(range(max(budget, own)))
    pods = Topology(cores=tuple(Core(cpus=(cpu,)) for cpu in cpus), nodes=(NumaNode(cpus=cpus),))
    space = SearchSpace(topology=pods, cores=budget, batches=tuple(batches), affinities=POD_AFFINITIES)
    return space, candidate_of(shape, budget)


def is_elsewhere(target: TuningTarget) -> bool:
    """Whether the service does not run on this machine."""
    from scanflow.transport.clients import is_loopback

    return target.record is not None and not is_loopback(target.record.url)


def tune_service(
    where: Deployer,
    target: TuningTarget,
    request: RequestOf,
    goal: Goal,
    budget: TuningBudget,
    *,
    cores: int | None = None,
    batches: Sequence[int] = (),
    connections: int = 16,
    seconds: float = 3.0,
    folder: Path | None = None,
    history: TuningHistory | None = None,
    observe: Callable[[SearchStep], None] = lambda _step: None,
    tried: Callable[[str], None] = lambda _text: None,
    changes: ServiceObserver = lambda _progress: None,
) -> TuningReport:
    """Search on a copy of the service, which is deleted at the end. Trials that are in ``folder`` are not made again.

    ``history`` is what an earlier search found, to begin from; None: nothing. ``observe`` is told of each measurement
    before it is made, ``tried`` of each trial in words.

    Raises:
        InvalidError: there is nothing to search, or requests to the service fail.
        UsageError: the time is too short, the folder has another search's trials, or the service was deleted meanwhile.
    """
    from scanflow.placement.sysfs import read_topology

    try:
        from scanflow.tuning.service_copy import ServiceCopy, copy_of
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "A search needs the serving extra. Install it: pip install 'scanflow[serving]'"
        ) from error

    if is_elsewhere(target):
        space, default = cluster_space(target, cores=cores, batches=batches)
    else:
        space, default = search_space(target, read_topology(), where.services(), cores=cores, batches=batches)
    callers = 1 if goal.name == "latency" else connections

    request = cache(request)  # to ask the copy what it takes is no part of each measurement

    def load_of(record: ServiceRecord) -> LoadPlan:
        return load_plan(record, request(record.name), connections=callers)

    def keep(trial: Trial) -> None:
        tried(candidate_text(trial, goal, default))
        if folder is not None:
            append_line(folder, trial)

    def watch(step: SearchStep) -> None:
        if target.record is not None and all(one.name != target.record.name for one in where.services(instances=False)):
            raise UsageError(f"{target.record.name!r} was deleted, so the search for it has ended.")
        observe(step)

    settings = {
        "service": target.workflow.name,
        "goal": goal.name,
        "p99_s": goal.p99_s,
        "cores": space.cores,
        "connections": callers,
        "seconds": seconds,
        "default": asdict(default),
    }
    known = [] if folder is None else kept_trials(folder, settings)
    copy = ServiceCopy(
        where=where,
        app=copy_of(target.app, target.workflow),
        load=load_of,
        source=target.source,
        seconds=seconds,
        observe=changes,
    )
    with copy:
        study = Study(
            space=space,
            default=default,
            goal=goal,
            bench=copy,
            most=budget.trials,
            seconds=60 * budget.minutes,
            observe=watch,
            keep=keep,
            trials=known,
            history=None if history is None else history.adapt(space),
        )
        return TuningReport(target=target, result=study.run(), cores=space.cores)


def kept_trials(folder: Path, settings: dict[str, Any]) -> list[Trial]:
    """Return the trials of a search that was cut short; begin the file where there is none.

    Raises:
        UsageError: they are another search's.
    """
    file = folder / TRIALS_FILE
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings) + "\n", encoding="utf-8")
        return []
    first, *lines = file.read_text(encoding="utf-8").splitlines()
    if json.loads(first) != settings:
        raise UsageError(f"{file} has the trials of another search: {first}. Name another folder, or search like that.")
    try:
        return [Trial.of(json.loads(line)) for line in lines]
    except (ValueError, TypeError, KeyError):  # the last one was being written, and the next would be written behind it
        file.write_text("".join(f"{line}\n" for line in (first, *lines[:-1])), encoding="utf-8")
        return [Trial.of(json.loads(line)) for line in lines[:-1]]


def append_line(folder: Path, trial: Trial) -> None:
    with (folder / TRIALS_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(trial)) + "\n")


def write_files(report: TuningReport, folder: Path, chart: str) -> Sequence[Path]:
    """Write ``tuning.json`` and ``tuning.svg``, and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "tuning.json", folder / "tuning.svg"]
    files[0].write_text(json.dumps(report.summary(), indent=2) + "\n", encoding="utf-8")
    files[1].write_text(chart, encoding="utf-8")
    return files


def log_tuning(knowledge: KnowledgeBase, home: Path, report: TuningReport, chart: str) -> TrackedRun:
    """Keep a search as a run of the application, and with the model's version the winner's resources and what a later
    search may begin from.

    Args:
        knowledge: The tracker of the application.
        home: Where models' files are cached.
        report: Of the search.
        chart: The plot, as SVG.
    """
    found, target, summary = report.result, report.target, report.summary()
    params = {name: summary[name] for name in ("service", "goal", "p99_s", "cores", "candidates")}
    params |= {f"default.{name}": value for name, value in summary["default"].items()}
    params |= {f"best.{name}": value for name, value in summary["best"].items()}
    metrics: dict[str, float] = {"trials": float(len(found.trials)), "better": float(found.winner is not None)}
    if found.history is not None:
        params["began_from"] = found.history.source
        metrics["saved_trials"] = float(found.saved_trials)
    if found.comparison is not None:
        metrics |= {name: getattr(found.comparison, name) for name in ("ratio", "low", "high")}
    with TemporaryDirectory(prefix="scanflow-tune-") as folder:
        write_files(report, Path(folder), chart)
        run = knowledge.log_run(
            target.app.name,
            target.app.team,
            name=f"tune-{target.workflow.name}",
            params={name: value for name, value in params.items() if value is not None},
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
            tags={"scanflow.kind": "tuning", "scanflow.service": target.workflow.name},
            artifacts=Path(folder),
            status="failed" if found.interrupted else "finished",
        )
    if found.winner is not None and found.comparison is not None:
        tuned = {**asdict(found.winner), "goal": found.goal.name, **asdict(found.comparison), "run": run.run_id}
        for version in served_versions(knowledge, target.workflow):
            knowledge.set_model_tags(version.name, version.version, {TUNED_TAG: json.dumps(tuned)})
    if found.trials and not found.interrupted:
        TuningHistories(knowledge, home).save(target.workflow, found.goal, found.next_history, run=run.run_id)
    return run
