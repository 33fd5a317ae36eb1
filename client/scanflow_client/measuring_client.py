"""Load tests and tuning of services, and plans of MPI jobs, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.errors import UnsupportedError
from scanflow.text.masking import mask_addresses
from scanflow_client.job_planning import NODE_CORES, plan_workflow_job
from scanflow_client.program import resolve_application
from scanflow_client.progress import open_output
from scanflow_client.registry_client import RegistryClient

if TYPE_CHECKING:
    from scanflow.app.application import Application
    from scanflow.app.workflow import Workflow
    from scanflow.placement.mpi.job_plan import MPIPlan
    from scanflow.tuning.goals import Goal, GoalName
    from scanflow.tuning.warm_start import TuningHistory
    from scanflow_client.load_report import LoadReport
    from scanflow_client.tuning_report import TuningReport
    from scanflow_client.tuning_target import TuningTarget


class MeasuringClient(RegistryClient):
    def load(
        self,
        name: str,
        inputs: Any,
        *,
        rate: float | None = None,
        trace: str | None = None,
        poisson: int | None = None,
        seconds: float | None = None,
        connections: int = 16,
        node: str | None = None,
        dtype: str | None = None,
        grpc: bool = False,
    ) -> LoadReport:
        """Load a service with prediction requests, and return the outcome of each.

        Args:
            name: The service.
            inputs: As in :meth:`predict`.
            rate: Requests a second, sent whether or not earlier ones have completed; None: a closed loop.
            trace: A rate over time: ``steps:50,100,200``, ``sine:20,200,60``, or the name of a CSV file.
            poisson: The seed of a Poisson process; None: requests are evenly due.
            seconds: Duration; None: 10, or that of a recorded trace.
            connections: Number of concurrent callers.
            node: Send requests to this node of the graph only.
            dtype: The type in which numbers are sent.
            grpc: Send over gRPC instead of REST.
        """
        from scanflow_client.load_report import LoadSpec
        from scanflow_client.predict_io import PredictRequest, to_call
        from scanflow_client.service_load import build_trace, load_service, show_load_progress

        spec = LoadSpec.build(
            build_trace(rate, trace, seconds), poisson=poisson, seconds=seconds, connections=connections
        )
        prediction = PredictRequest(inputs=inputs)
        request = to_call(self._deployer, name, prediction, node=node, dtype=dtype, grpc=grpc)
        with open_output(self._choose_stream()) as output:
            observe = show_load_progress(output.update, spec)
            spec = replace(spec, rows=prediction.rows, grpc=grpc)
            return load_service(self._deployer.service(name), request, spec, observe=observe)

    def tune(
        self,
        target: str,
        inputs: Any,
        *,
        goal: GoalName = "throughput",
        p99_s: float | None = None,
        cores: int | None = None,
        gpus: int | None = None,
        batches: Sequence[int] = (),
        trials: int = 20,
        minutes: float = 15.0,
        seconds: float = 3.0,
        connections: int = 16,
        node: str | None = None,
        dtype: str | None = None,
        folder: Path | None = None,
        fresh: bool = False,
    ) -> TuningReport:
        """Find the best instances, cores, GPUs, affinity and threads, on a copy of a service.

        A notebook draws the result.

        Args:
            target: The service, or an online workflow in a file: ``app.py:serve``.
            inputs: The request, as in :meth:`predict`.
            goal: ``throughput``, ``latency`` (of a single caller, 90th percentile) or ``cost`` (throughput of a core).
            p99_s: Upper bound of the p99 latency, in seconds.
            cores: The budget of cores; None: the service's cores.
            gpus: The budget of GPUs; None: the service's GPUs.
            batches: Batch sizes to try, too.
            trials: Maximum number of candidates to measure.
            minutes: Maximum duration.
            seconds: Duration of a measurement.
            connections: Number of concurrent callers.
            node: Send requests to this node of the graph only.
            dtype: The type in which numbers are sent.
            folder: The folder for the trials; a search continues from those in it.
            fresh: Ignore earlier searches for this model or similar ones.
        """
        from scanflow.backends.device_claims import HomeDevices
        from scanflow.tuning.goals import Goal
        from scanflow_client.predict_io import HttpRequest, PredictRequest, to_http
        from scanflow_client.tuning import TuningBudget, tune_service
        from scanflow_client.tuning_report import format_step
        from scanflow_client.tuning_target import TuningTarget

        def build_request(name: str) -> HttpRequest:
            return to_http(self._deployer, name, PredictRequest(inputs=inputs), node=node, dtype=dtype, seldon=False)

        search_goal, tuned = Goal(name=goal, p99_s=p99_s), TuningTarget.find(self._deployer, target)
        history = None if fresh else self._find_history(tuned, search_goal)
        with open_output(self._choose_stream()) as output:
            return tune_service(
                self._deployer,
                tuned,
                build_request,
                search_goal,
                TuningBudget(trials=trials, minutes=minutes),
                cores=cores,
                gpus=gpus,
                devices=HomeDevices(self._settings.home),
                batches=batches,
                connections=connections,
                seconds=seconds,
                folder=folder,
                history=history,
                observe=lambda step: output.update(format_step(step)),
                on_trial=lambda text: output.print(text, ""),
            )

    def plan_job(
        self,
        what: Application | Workflow,
        workflow: str | None = None,
        *,
        nodes: int | None = None,
        cores: float = NODE_CORES,
        measure: bool = False,
    ) -> MPIPlan:
        """Return the workers of an MPI job, and each rank's node and CPUs, without running it.

        Args:
            what: The application, or the workflow alone.
            workflow: The name of a workflow of type ``mpi``; None: the only one.
            nodes: Plan for this many equal nodes. None: for the backend's, which may be this machine.
            cores: The cores of each of them.
            measure: With ``profile="auto"``, run the program first, 30 s at most, to find its bottleneck.

        Raises:
            UnsupportedError: the job would run on the nodes of a server of another machine.
        """
        from scanflow.transport.clients import is_loopback

        if nodes is None and self.url is not None and not is_loopback(self.url):
            raise UnsupportedError(
                f"The nodes of {mask_addresses(self.url)} are not known here. Say what to plan for: "
                "client.plan_job(app, nodes=4, cores=32). What it would do itself: client.plan(app)"
            )
        application = resolve_application(what)
        return plan_workflow_job(self._settings, application, workflow, nodes=nodes, cores=cores, measure=measure)[1]

    def _find_history(self, target: TuningTarget, goal: Goal) -> TuningHistory | None:
        from scanflow_client.tuning import find_history

        return find_history(self._open_knowledge, self._settings.home, target, goal)
