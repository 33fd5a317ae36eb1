"""Characterize a service or an MPI job: load on a copy of the service, or runs of the job, with increasing cores
(Wang et al., Container Resource Allocation versus Performance of Data-intensive Applications, 5.1 and 5.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from scanflow.app.mpi import MPIWorkload
from scanflow.app.quantities import format_count
from scanflow.app.serving import Serving
from scanflow.backends.device_claims import HomeDevices
from scanflow.characterization.analysis import (
    DeviceUsage,
    ResourceRecommendation,
    Saturation,
    WorkflowCharacterization,
    add_spare,
    choose_instances,
    choose_next_limit,
    classify_saturation,
    find_knee,
    recommend,
)
from scanflow.characterization.characterization_study import rotate
from scanflow.characterization.measurement import SizedRun
from scanflow.deployer import RunRequest
from scanflow.errors import InvalidError, ScanflowError, StepFailedError, UnsupportedError
from scanflow.placement.device_cuts import DeviceBudget, Gpus
from scanflow.processes.proc_stat import compute_cpu_seconds, read_stat_fields
from scanflow.settings import Settings
from scanflow.tuning.candidates import Candidate, describe
from scanflow_client.service_load import build_load_plan
from scanflow_client.tuning import build_device_budget, check_copy_gpus

if TYPE_CHECKING:
    from scanflow.app.application import Application
    from scanflow.app.workflow import Workflow
    from scanflow.backends.service_records import ServiceRecord
    from scanflow.deployer import Deployer
    from scanflow.load.load_process import LoadPlan
    from scanflow.tuning.service_copy import LoadOf, ServiceCopy
    from scanflow_client.tuning import BuildRequest
    from scanflow_client.tuning_target import TuningTarget

CALLERS = 8
"""Connections for each instance; for batches two for each request of one, so that the next one is waiting."""

BATCHES = (1, 4, 16, 64)
"""The largest numbers of requests in a batch that are tried of a service with a GPU."""

NEARLY_WHOLE = 0.99
"""The share of a GPU with which limits of its memory are tried: whole ones have none."""

_Runs: TypeAlias = Mapping[Candidate, Sequence[SizedRun]]


def characterize_service(
    deployer: Deployer,
    target: TuningTarget,
    request: BuildRequest,
    counts: Sequence[int],
    *,
    rounds: int = 3,
    seconds: float = 3.0,
    batches: Sequence[int] = BATCHES,
    devices: HomeDevices | None = None,
    search_memory: bool = True,
    observe: Callable[[str], None] = lambda _text: None,
) -> WorkflowCharacterization:
    """Measure a temporary copy of a service: one instance with increasing cores, and increasing instances of one core;
    with a GPU also increasing batches, and decreasing memory of the GPU.

    Raises:
        InvalidError: it has no room, or requests fail.
    """
    from scanflow.tuning.service_copy import ServiceCopy, build_copy

    budget = build_device_budget(target, devices or HomeDevices(Settings().home), gpus=None)
    gpu = target.shape.gpu
    if budget is not None:
        gpu = next(iter(budget.list_possible_cuts(1)), gpu)
        check_copy_gpus(target, budget, 1, gpu)
    by_cores = [Candidate(instances=1, cores=float(count), gpu=gpu, affinity="cpu") for count in counts]
    by_instances = _list_instance_sizes(counts, budget)
    by_batch = [] if budget is None else [replace(by_cores[-1], batch=batch) for batch in batches or BATCHES]
    copy = ServiceCopy(
        where=deployer,
        app=build_copy(target.app, target.workflow),
        load=_build_load(request, target),
        source=target.source,
        seconds=seconds,
    )
    runs: dict[Candidate, list[SizedRun]] = {size: [] for size in (*by_cores, *by_instances, *by_batch)}
    with copy:
        for number in range(rounds):
            for size in rotate(list(runs), number):
                observe(f"round {number + 1} of {rounds}: {describe(size)}")
                copy.load = _build_load(request, target, batch=size.batch or 0)
                runs[size].append(_measure_size(copy, size))
        scaling = _classify(runs, by_cores, lambda size: int(size.cores))
        own = runs[next(size for size in by_cores if int(size.cores) == scaling.enough)]
        copy.load = _build_load(request, target)
        limits: dict[int, bool] = {}
        missing: list[str] = []
        if budget is not None and search_memory:
            limits, missing = _search_gpu_limits(copy, budget, runs, by_cores[-1], observe)
    recommendation, usage = recommend(scaling, own, None), None
    if budget is not None:
        usage, recommendation = _summarize_gpus(
            recommendation,
            budget,
            gpu,
            by_instances=_classify(runs, [by_cores[0], *by_instances], lambda size: size.instances),
            by_batch=_classify(runs, by_batch, lambda size: size.batch or 0),
            limits=limits,
        )
    return WorkflowCharacterization(
        name=target.workflow.name,
        unit="request",
        runs={describe(size): tuple(several) for size, several in runs.items()},
        saturation=scaling,
        recommendation=recommendation,
        missing=("memory limits: instances on this machine have none, so their peak memory is used", *missing),
        device=usage,
    )


def _summarize_gpus(
    recommendation: ResourceRecommendation,
    budget: DeviceBudget,
    gpu: Gpus,
    *,
    by_instances: Saturation,
    by_batch: Saturation,
    limits: Mapping[int, bool],
) -> tuple[DeviceUsage, ResourceRecommendation]:
    """Return what was measured of a service's GPUs, and the resources with those that one instance should request.
    ``gpu``: what it gets where it is alone."""
    knee = find_knee(limits)
    memory = budget.memory_bytes if knee is None else add_spare(knee.enough)
    instances, gpu = choose_instances(by_instances, replace(budget, memory_bytes=memory), gpu)
    usage = DeviceUsage(by_instances=by_instances, by_batch=by_batch, limits=limits, knee=knee, instances=instances)
    cpu = recommendation.cpu if instances == 1 else min(1.0, recommendation.cpu)
    return usage, replace(recommendation, cpu=cpu, gpu=gpu, gpu_memory_bytes=memory)


def _list_instance_sizes(counts: Sequence[int], budget: DeviceBudget | None) -> list[Candidate]:
    """Return increasing instances of one core; with GPUs, those that can share them."""
    return [
        Candidate(instances=count, cores=1.0, gpu=gpu, affinity="cpu")
        for count in counts
        if count > 1
        for gpu in ([0] if budget is None else budget.list_possible_cuts(count)[:1])
    ]


def _build_load(request: BuildRequest, target: TuningTarget, *, batch: int = 0) -> LoadOf:
    queue = (target.workflow.serving or Serving()).queue

    def build(record: ServiceRecord) -> LoadPlan:
        callers = max(CALLERS * max(1, record.shape.instances), min(2 * batch, queue))
        return build_load_plan(record, request(record.name), connections=callers)

    return build


def _classify(runs: _Runs, sizes: Sequence[Candidate], count: Callable[[Candidate], int]) -> Saturation:
    return classify_saturation({count(size): [run.seconds for run in runs[size]] for size in sizes})


def _search_gpu_limits(
    copy: ServiceCopy, budget: DeviceBudget, runs: _Runs, size: Candidate, observe: Callable[[str], None]
) -> tuple[dict[int, bool], list[str]]:
    """Return whether one instance answers all requests with less and less memory of its GPU; and what cannot be
    measured here."""
    limited = replace(size, gpu=NEARLY_WHOLE) if isinstance(size.gpu, int) else size
    peak = max(run.gpu_bytes or 0 for run in runs[size])
    refusal = budget.explain_refusal(1, limited.gpu) if isinstance(limited.gpu, float) else "a part has its own"
    if refusal or not peak:
        return {}, [f"limits of its GPU's memory: {refusal or 'the driver does not say what it holds'}"]
    tried: dict[int, bool] = {}
    while (limit := choose_next_limit(peak, tried)) is not None:
        observe(f"with {limit / 2**20:.0f} MiB of the GPU's memory")
        copy.gpu_memory_bytes = limit
        tried[limit] = _answers_all(copy, limited)
    return dict(sorted(tried.items(), reverse=True)), []


def _answers_all(copy: ServiceCopy, size: Candidate) -> bool:
    """Return whether a size starts, answers all requests, and its instances live on."""
    try:
        measured = copy.measure(size)
        restarts = sum(instance.restarts for instance in copy.where.service(copy.name).instances)
    except ScanflowError:
        return False
    return not (measured.failed or restarts) and measured.rate > 0


def _measure_size(copy: ServiceCopy, size: Candidate) -> SizedRun:
    copy.measure(size)  # deploys it and warms it up
    before = _read_cpu_seconds(copy)
    measured = copy.measure(size)
    used = _read_cpu_seconds(copy) - before
    if measured.failed or not measured.rate:
        raise InvalidError(
            f"{measured.failed} of {measured.requests} requests to {describe(size)} failed: {measured.reason}. Send a "
            "valid request, as with scanflow predict."
        )
    peak = max((instance.rss_bytes or 0 for instance in copy.where.service(copy.name).instances), default=0)
    return SizedRun(
        seconds=1 / measured.rate,
        cores=used / copy.seconds,
        peak_bytes=peak,
        gpu_bytes=measured.gpu_bytes,
        others=measured.others,
    )


def _read_cpu_seconds(copy: ServiceCopy) -> float:
    pids = [instance.pid for instance in copy.where.service(copy.name).instances if instance.pid is not None]
    return sum(compute_cpu_seconds(read_stat_fields(pid)) for pid in pids)


def characterize_job(
    deployer: Deployer,
    app: Application,
    workflow: Workflow,
    counts: Sequence[int],
    *,
    rounds: int = 3,
    observe: Callable[[str], None] = lambda _text: None,
) -> WorkflowCharacterization:
    """Run an MPI job with increasing ranks, each with the resources that the job requests.

    Raises:
        UnsupportedError: the workflow is not an MPI job.
        StepFailedError: a run failed; names the run.
    """
    job = workflow.nodes[0]
    if not isinstance(job, MPIWorkload):
        raise UnsupportedError(
            f"{workflow.name!r} is a {workflow.type} workflow. Services and MPI jobs are characterized by name; for a "
            "step, give its program: scanflow characterize -- python train.py"
        )
    runs: dict[int, list[SizedRun]] = {count: [] for count in counts}
    for number in range(rounds):
        for count in rotate(list(runs), number):
            observe(f"round {number + 1} of {rounds}: {format_count(count, 'rank')}")
            sized = workflow.replace(nodes=[job.replace(n_tasks=count, n_workers=None)])
            others = tuple(other for other in app.workflows if other.name != workflow.name)
            runs[count].append(_run_job(deployer, app.replace(workflows=(*others, sized)), sized.name))
    scaling = classify_saturation({count: [run.seconds for run in several] for count, several in runs.items()})
    return WorkflowCharacterization(
        name=workflow.name,
        unit="run",
        runs={format_count(count, "rank"): tuple(several) for count, several in runs.items()},
        saturation=scaling,
        recommendation=recommend(scaling, runs[scaling.enough], None),
    )


def _run_job(deployer: Deployer, app: Application, name: str) -> SizedRun:
    record = deployer.run(RunRequest(app, name))
    tasks = [task for task in record.tasks if task.seconds is not None]
    if record.state != "succeeded" or not tasks:
        raise StepFailedError(f"The run {record.name} of {name!r} {record.state}. See: scanflow logs {record.name}")
    seconds = max(task.seconds or 0.0 for task in tasks)
    return SizedRun(
        seconds=seconds,
        cores=sum(task.cpu_s or 0.0 for task in tasks) / seconds,
        peak_bytes=sum(task.max_rss_bytes or 0 for task in tasks),
    )
