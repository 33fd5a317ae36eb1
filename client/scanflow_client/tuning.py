"""Tuning of a service, on this machine or where it is deployed: preparation, search and logging."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from scanflow.accelerators.accelerator_port import Inventory
from scanflow.app.quantities import format_count
from scanflow.backends.device_claims import HomeDevices
from scanflow.errors import InvalidError, MissingExtraError, UnavailableError, UsageError
from scanflow.installation import explain_install
from scanflow.placement.device_cuts import DeviceBudget, Gpus, sum_gpus
from scanflow.placement.device_grants import describe_device
from scanflow.placement.topology import Topology
from scanflow.settings import Settings
from scanflow.tuning.candidates import Candidate, SearchSpace, build_candidate, describe
from scanflow.tuning.goals import Goal
from scanflow.tuning.result import Trial
from scanflow.tuning.study import SearchStep, Study
from scanflow.tuning.warm_start import TuningHistory
from scanflow_client.exclusive_cpus import list_exclusive_grants
from scanflow_client.service_load import build_load_plan
from scanflow_client.tuning_history import TuningHistories, iterate_served_versions
from scanflow_client.tuning_report import TuningReport, describe_budget, format_candidate
from scanflow_client.tuning_target import TuningTarget

if TYPE_CHECKING:
    from scanflow.app.resources import AffinityMode
    from scanflow.backends.service_records import ServiceObserver, ServiceRecord
    from scanflow.deployer import Deployer
    from scanflow.knowledge.knowledge_port import KnowledgeBase
    from scanflow.knowledge.knowledge_records import TrackedRun
    from scanflow.load.load_process import LoadPlan
    from scanflow_client.predict_io import HttpRequest

TRIALS_FILE = "trials.jsonl"
TUNED_TAG = "scanflow.tuned"
"""Tag of a model's version: its best candidate, and by how much, as JSON."""

BuildRequest = Callable[[str], "HttpRequest | Sequence[HttpRequest]"]
"""Return the request to send to a service of that name, or several to send in turn."""


def find_history(
    knowledge: Callable[[], KnowledgeBase], home: Path, target: TuningTarget, goal: Goal
) -> TuningHistory | None:
    """Return the history to start a search from; None: there is none, or no tracker.

    Args:
        knowledge: Opens the tracker; called if the service has a registered model.
        home: The home folder, with the cache of models' files.
        target: The workflow to tune.
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
            raise InvalidError("A search needs at least one trial, and lasts at most a day: --trials 20 --minutes 15")


def build_search_space(
    target: TuningTarget,
    machine: Topology,
    services: Sequence[ServiceRecord],
    *,
    cores: int | None,
    batches: Sequence[int],
    gpus: DeviceBudget | None = None,
) -> tuple[SearchSpace, Candidate]:
    """Return the search space, and the service's current candidate. ``cores``: the budget; None: the service's cores,
    else all free ones. ``gpus``: that of GPUs.

    Raises:
        InvalidError: the machine has too few free cores or GPUs for a copy of the service, or the budget is invalid.
    """
    shape = target.shape
    beside = list_exclusive_grants(services)
    free = machine.effective_count - math.ceil(sum(grant.cores for grant in beside))
    own = None if shape.cores is None else max(1, shape.instances) * shape.cores
    budget = cores if cores is not None else free if own is None else math.floor(own)
    if not 1 <= free >= budget:
        less = f"set its cores (--cores {free}), or " if free else ""
        raise InvalidError(
            f"A copy of {target.workflow.name!r} with {format_count(max(1, budget), 'core')} does not fit: {free} of "
            f"{machine.effective_count} are free beside the running services. For the time of the search, {less}delete "
            "or scale down another service."
        )
    _check_divisible(target, budget, most=free)
    space = SearchSpace(topology=machine, cores=budget, beside=tuple(beside), batches=tuple(batches), gpus=gpus)
    default = build_candidate(shape, budget)
    if gpus is not None:
        check_copy_gpus(target, gpus, default.instances, default.gpu)
    if space.find_placement(default) is None:
        raise InvalidError(
            f"A copy of {target.workflow.name!r} as it is does not fit beside the running services. For the time of "
            "the search, delete or scale down another service."
        )
    return space, default


def _check_divisible(target: TuningTarget, budget: int, *, most: int) -> None:
    if budget < 1:
        raise InvalidError(
            f"{target.workflow.name!r} has less than a core, which cannot be divided. Give more: --cores {min(2, most)}"
        )


def build_device_budget(target: TuningTarget, devices: HomeDevices, *, gpus: int | None) -> DeviceBudget | None:
    """Return the GPUs that a service may have on this machine; None: it asks for none. ``gpus``: how many; None: those
    that it has.

    Raises:
        InvalidError: it asks for none, and ``gpus`` for some, or for more than there are; or for a part that no GPU
            has.
    """
    shape = target.shape
    if not shape.gpu:
        _refuse_gpus(target, gpus)
        return None
    inventory, held = devices.read_free()
    if inventory.devices and (gpus or 0) > len(inventory.devices):
        there = ", ".join(map(describe_device, inventory.devices))
        raise InvalidError(f"--gpus {gpus} is more than there is here: {there}.")
    return DeviceBudget(
        gpus=sum_gpus(max(1, shape.instances), shape.gpu, inventory) if gpus is None else float(gpus),
        memory_bytes=shape.gpu_memory_bytes,
        inventory=inventory,
        claims=held,
    )


def check_copy_gpus(target: TuningTarget, budget: DeviceBudget, instances: int, gpu: Gpus) -> None:
    """Check that a copy of a service can have GPUs beside what runs.

    Raises:
        InvalidError: it cannot; names who has them.
    """
    lack = budget.explain_refusal(instances, gpu)
    if not lack:
        return
    who = f"A copy of {target.workflow.name!r}"
    if never := budget.explain_lack(instances, gpu):
        raise InvalidError(f"{who} cannot have its GPUs here: {never}")
    raise InvalidError(f"{who} cannot have its GPUs beside what runs: {lack} {_advise_freeing(target, budget, gpu)}")


def _advise_freeing(target: TuningTarget, budget: DeviceBudget, gpu: Gpus) -> str:
    """Return how GPUs for a copy become free: its service may have them, or others."""
    name = target.workflow.name
    own = [claim for claim in budget.claims if target.record is not None and claim.owner.startswith(f"{name}/")]
    others = [claim for claim in budget.claims if claim not in own]
    if not own or replace(budget, claims=tuple(others)).explain_refusal(1, gpu):
        return "Wait until they are free, or delete or scale down meanwhile the service that has them."
    first = [claim for claim in own if claim.owner == own[0].owner]
    is_one_enough = not replace(budget, claims=(*others, *first)).explain_refusal(1, gpu)
    scale = f"Scale {name!r} down meanwhile (scanflow scale {name} 1), or delete it" if is_one_enough else ""
    return f"{scale or f'Delete {name!r} meanwhile'}, and name its file: {target.source or 'app.py'}:{name}"


def _refuse_gpus(target: TuningTarget, gpus: int | None) -> None:
    if gpus is not None:
        raise InvalidError(
            f"{target.workflow.name!r} asks for no GPU, so that there is none to divide. Ask for one "
            "(resources=sf.Resources(gpu=1)), or leave out --gpus."
        )


def check_alternatives(target: TuningTarget, space: SearchSpace, default: Candidate) -> None:
    """Check that there is a candidate besides a service as it is.

    Raises:
        InvalidError: there is none; says what was left out, and what to give.
    """
    if space.list_alternatives(default):
        return
    budget = describe_budget(space.cores, 0.0 if space.gpus is None else space.gpus.gpus)
    refused = "; ".join(str(refused).rstrip(".") for refused in space.refused_cuts)
    raise InvalidError(
        f"With {budget}, there is nothing to compare {target.workflow.name!r} as it is with: {describe(default)}. "
        f"{f'Left out: {refused}. ' if refused else ''}Each instance needs whole cores. Give more cores (--cores "
        f"{2 * space.cores}), {'' if space.gpus is None else 'other GPUs (--gpus N), '}or sizes of batches (--batches "
        "4,16)."
    )


POD_AFFINITIES: tuple[AffinityMode, ...] = ("any", "cpu")
"""Affinities of pods: shared CPUs, or exclusive ones by the kubelet's static policy."""


def build_cluster_space(
    target: TuningTarget, *, cores: int | None, batches: Sequence[int], gpus: int | None = None
) -> tuple[SearchSpace, Candidate]:
    """Return the search space of a service on a cluster, replicas times cores of pods, and its current candidate.

    ``cores``, ``gpus``: the budgets; None: the sum of the service's pods. Kubernetes schedules the pods: a candidate
    whose pods do not start, or whose GPUs no node offers, has failed.

    Raises:
        InvalidError: the budget is not known, or its pods have parts of GPUs.
    """
    shape = target.shape
    if cores is None and shape.cores is None:
        raise InvalidError(f"The cores for {target.workflow.name!r} are unknown. Give a budget: --cores 2")
    budget = cores if cores is not None else math.floor(max(1, shape.instances) * (shape.cores or 1))
    _check_divisible(target, budget, most=2)
    space = SearchSpace(
        topology=None,
        cores=budget,
        batches=tuple(batches),
        affinities=POD_AFFINITIES,
        gpus=_build_pod_gpus(target, gpus),
    )
    return space, build_candidate(shape, budget)


def _build_pod_gpus(target: TuningTarget, gpus: int | None) -> DeviceBudget | None:
    shape = target.shape
    if not shape.gpu:
        _refuse_gpus(target, gpus)
        return None
    if isinstance(shape.gpu, str):
        raise InvalidError(
            f"The pods of {target.workflow.name!r} ask for gpu={shape.gpu!r}, a part, which cannot be divided further. "
            "Search with whole GPUs or shares: gpu=1 or gpu=0.5."
        )
    amount = sum_gpus(max(1, shape.instances), shape.gpu, Inventory()) if gpus is None else float(gpus)
    return DeviceBudget(gpus=amount, memory_bytes=shape.gpu_memory_bytes, inventory=None)


def is_remote(target: TuningTarget) -> bool:
    """Return whether the service runs on another machine."""
    from scanflow.transport.clients import is_loopback

    return target.record is not None and not is_loopback(target.record.url)


def tune_service(
    deployer: Deployer,
    target: TuningTarget,
    request: BuildRequest,
    goal: Goal,
    budget: TuningBudget,
    *,
    cores: int | None = None,
    gpus: int | None = None,
    devices: HomeDevices | None = None,
    batches: Sequence[int] = (),
    connections: int = 16,
    seconds: float = 3.0,
    folder: Path | None = None,
    history: TuningHistory | None = None,
    observe: Callable[[SearchStep], None] = lambda _step: None,
    on_trial: Callable[[str], None] = lambda _text: None,
    changes: ServiceObserver = lambda _progress: None,
) -> TuningReport:
    """Search on a temporary copy of the service. Trials that are in ``folder`` are not repeated.

    ``cores`` and ``gpus`` are the budgets; ``devices`` the GPUs of this machine, None: those of the default home.
    ``history`` is the result of an earlier search to begin from. ``observe`` is called before each measurement,
    ``on_trial`` with the text of each trial.

    Raises:
        InvalidError: there is nothing to search, or requests to the service fail.
        UsageError: the time is too short, the folder has another search's trials, or the service was deleted meanwhile.
    """
    from scanflow.placement.sysfs import read_topology

    try:
        from scanflow.tuning.service_copy import ServiceCopy, build_copy
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"A search needs the serving extra. {explain_install('serving')}") from error

    on_cluster = is_remote(target)
    if on_cluster:
        space, default = build_cluster_space(target, cores=cores, batches=batches, gpus=gpus)
    else:
        budgeted = build_device_budget(target, devices or HomeDevices(Settings().home), gpus=gpus)
        space, default = build_search_space(
            target, read_topology(), deployer.services(), cores=cores, batches=batches, gpus=budgeted
        )
    check_alternatives(target, space, default)
    callers = 1 if goal.name == "latency" else connections

    request = cache(request)  # so that no measurement includes a query of the copy's inputs

    def build_load(record: ServiceRecord) -> LoadPlan:
        return build_load_plan(record, request(record.name), connections=callers)

    def keep(trial: Trial) -> None:
        on_trial(format_candidate(trial, goal, default))
        if folder is not None:
            append_result(folder, trial)

    def watch(step: SearchStep) -> None:
        if target.record is not None and all(
            service.name != target.record.name for service in deployer.services(instances=False)
        ):
            raise UsageError(f"{target.record.name!r} was deleted, so the search for it has ended.")
        observe(step)

    settings = {
        "service": target.workflow.name,
        "goal": goal.name,
        "p99_s": goal.p99_s,
        "cores": space.cores,
        **({} if space.gpus is None else {"gpus": space.gpus.gpus}),
        "connections": callers,
        "seconds": seconds,
        "default": asdict(default),
    }
    trials = [] if folder is None else load_trials(folder, settings)
    copy = ServiceCopy(
        where=deployer,
        app=build_copy(target.app, target.workflow),
        load=build_load,
        source=target.source,
        seconds=seconds,
        on_cluster=on_cluster,
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
            trials=trials,
            history=None if history is None else history.adapt(space),
        )
        return TuningReport(
            target=target,
            result=study.run(),
            cores=space.cores,
            gpus=0.0 if space.gpus is None else space.gpus.gpus,
            refused_cuts=tuple(space.refused_cuts),
        )


def load_trials(folder: Path, settings: dict[str, Any]) -> list[Trial]:
    """Return the trials of an interrupted search; create the file if there is none.

    Raises:
        UsageError: the trials are another search's.
    """
    file = folder / TRIALS_FILE
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings) + "\n", encoding="utf-8")
        return []
    first, *lines = file.read_text(encoding="utf-8").splitlines()
    if json.loads(first) != settings:
        raise UsageError(
            f"{file} has the trials of another search: {first}. Name another folder, or repeat that search."
        )
    try:
        return [Trial.from_json(json.loads(line)) for line in lines]
    except (ValueError, TypeError, KeyError):  # the last one was being written, and the next would be written behind it
        file.write_text("".join(f"{line}\n" for line in (first, *lines[:-1])), encoding="utf-8")
        return [Trial.from_json(json.loads(line)) for line in lines[:-1]]


def append_result(folder: Path, trial: Trial) -> None:
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
    """Log a search as a run of the application; tag the model's version with the winner and the history of the search.

    Args:
        knowledge: The tracker of the application.
        home: The home folder, with the cache of models' files.
        report: The search.
        chart: The plot, as SVG.
    """
    result, target, summary = report.result, report.target, report.summary()
    params = {name: summary[name] for name in ("service", "goal", "p99_s", "cores", "candidates")}
    params |= {f"default.{name}": value for name, value in summary["default"].items()}
    params |= {f"best.{name}": value for name, value in summary["best"].items()}
    metrics: dict[str, float] = {"trials": float(len(result.trials)), "better": float(result.winner is not None)}
    if result.history is not None:
        params["began_from"] = result.history.source
        metrics["saved_trials"] = float(result.saved_trials)
    if result.comparison is not None:
        metrics |= {name: getattr(result.comparison, name) for name in ("ratio", "low", "high")}
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
            status="failed" if result.interrupted else "finished",
        )
    if result.winner is not None and result.comparison is not None:
        tuned = {**asdict(result.winner), "goal": result.goal.name, **asdict(result.comparison), "run": run.run_id}
        for version in iterate_served_versions(knowledge, target.workflow):
            knowledge.set_model_tags(version.name, version.version, {TUNED_TAG: json.dumps(tuned)})
    if result.trials and not result.interrupted:
        TuningHistories(knowledge, home).save(target.workflow, result.goal, result.next_history, run=run.run_id)
    return run
