"""Characterize a service or an MPI job: load on a copy of the service, or runs of the job, with increasing cores
(Wang et al., Container Resource Allocation versus Performance of Data-intensive Applications, 5.1 and 5.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scanflow.app.mpi import MPIWorkload
from scanflow.app.quantities import format_count
from scanflow.characterization.analysis import WorkflowCharacterization, classify_saturation, recommend
from scanflow.characterization.characterization_study import rotate
from scanflow.characterization.measurement import SizedRun
from scanflow.deployer import RunRequest
from scanflow.errors import InvalidError, StepFailedError, UnsupportedError
from scanflow.processes.proc_stat import compute_cpu_seconds, read_stat_fields
from scanflow.tuning.candidates import Candidate, describe
from scanflow_client.service_load import build_load_plan

if TYPE_CHECKING:
    from scanflow.app.application import Application
    from scanflow.app.workflow import Workflow
    from scanflow.backends.service_records import ServiceRecord
    from scanflow.deployer import Deployer
    from scanflow.load.load_process import LoadPlan
    from scanflow.tuning.service_copy import ServiceCopy
    from scanflow_client.tuning import BuildRequest
    from scanflow_client.tuning_target import TuningTarget

CALLERS = 8
"""Connections for each instance."""


def characterize_service(
    deployer: Deployer,
    target: TuningTarget,
    request: BuildRequest,
    counts: Sequence[int],
    *,
    rounds: int = 3,
    seconds: float = 3.0,
    observe: Callable[[str], None] = lambda _text: None,
) -> WorkflowCharacterization:
    """Measure a temporary copy of a service: one instance with increasing cores, and increasing instances of one core.

    Raises:
        InvalidError: it has no room, or requests fail.
    """
    from scanflow.tuning.service_copy import ServiceCopy, build_copy

    def build_load(record: ServiceRecord) -> LoadPlan:
        return build_load_plan(record, request(record.name), connections=CALLERS * max(1, record.shape.instances))

    by_cores = [Candidate(instances=1, cores=float(count), affinity="cpu") for count in counts]
    by_instances = [Candidate(instances=count, cores=1.0, affinity="cpu") for count in counts if count > 1]
    copy = ServiceCopy(
        where=deployer,
        app=build_copy(target.app, target.workflow),
        load=build_load,
        source=target.source,
        seconds=seconds,
    )
    runs: dict[Candidate, list[SizedRun]] = {size: [] for size in (*by_cores, *by_instances)}
    with copy:
        for number in range(rounds):
            for size in rotate(list(runs), number):
                observe(f"round {number + 1} of {rounds}: {describe(size)}")
                runs[size].append(_measure_size(copy, size))
    times = {int(size.cores): [run.seconds for run in runs[size]] for size in by_cores}
    scaling = classify_saturation(times)
    own = runs[next(size for size in by_cores if int(size.cores) == scaling.cores)]
    return WorkflowCharacterization(
        name=target.workflow.name,
        unit="request",
        runs={describe(size): tuple(several) for size, several in runs.items()},
        saturation=scaling,
        recommendation=recommend(scaling, own, None),
        missing=("memory limits: instances on this machine have none, so their peak memory is used",),
    )


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
    return SizedRun(seconds=1 / measured.rate, cores=used / copy.seconds, peak_bytes=peak)


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
        recommendation=recommend(scaling, runs[scaling.cores], None),
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
