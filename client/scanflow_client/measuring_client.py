"""Load tests and tuning of services, for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from scanflow_client.control_client import ControlClient
from scanflow_client.progress import open_output

if TYPE_CHECKING:
    from scanflow.deployer import Deployer
    from scanflow.tuning.goals import Goal, GoalName
    from scanflow.tuning.warm_start import TuningHistory
    from scanflow_client.service_load import LoadReport
    from scanflow_client.tuning import TuningReport, TuningTarget


class MeasuringClient(ControlClient):
    _deployer: Deployer

    def _choose_stream(self) -> TextIO | None:
        """Return the stream for progress; None: it is not shown."""
        raise NotImplementedError

    def _find_history(self, target: TuningTarget, goal: Goal) -> TuningHistory | None:
        """Return the result of earlier searches to begin from; None: there is none."""
        raise NotImplementedError

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
            seconds: How long; None: 10, or as long as a recorded trace.
            connections: How many callers.
            node: One node of the graph alone.
            dtype: What numbers are sent as.
            grpc: Over gRPC rather than REST.
        """
        from scanflow_client.predict_io import PredictRequest, to_call
        from scanflow_client.service_load import LoadSpec, build_trace, load_service, show_load_progress

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
        """Find instances, cores, affinity and threads that serve best, on a copy of a service; a notebook draws them.

        Args:
            target: The service, or an online workflow of a file: ``app.py:serve``.
            inputs: What is sent, as in :meth:`predict`.
            goal: ``throughput``, ``latency`` (of a single caller, 90th percentile) or ``cost`` (throughput of a core).
            p99_s: A bound that has to be kept, in seconds.
            cores: The budget; None: what the service has.
            batches: Sizes of batches to try too.
            trials: Candidates to measure at most.
            minutes: How long at most.
            seconds: Of one measurement.
            connections: How many callers.
            node: One node of the graph alone.
            dtype: What numbers are sent as.
            folder: Where trials are kept, to go on from.
            fresh: Ignore what earlier searches found for this model or ones like it.
        """
        from scanflow.tuning.goals import Goal
        from scanflow_client.formatting.tune import format_step
        from scanflow_client.predict_io import HttpRequest, PredictRequest, to_http
        from scanflow_client.tuning import TuningBudget, TuningTarget, tune_service

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
                batches=batches,
                connections=connections,
                seconds=seconds,
                folder=folder,
                history=history,
                observe=lambda step: output.update(format_step(step)),
                on_trial=lambda text: output.print(text, ""),
            )
