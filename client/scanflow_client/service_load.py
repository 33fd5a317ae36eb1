"""Load tests of a service: specification, execution and report."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from scanflow.errors import InvalidError, MissingExtraError, UnsupportedError, did_you_mean
from scanflow.installation import explain_install
from scanflow_client.load_report import DEFAULT_S, LoadReport, LoadSpec

if TYPE_CHECKING:
    from scanflow.backends.service_records import ServiceRecord
    from scanflow.knowledge.knowledge_port import KnowledgeBase
    from scanflow.knowledge.knowledge_records import TrackedRun
    from scanflow.load.arrivals import RateTrace
    from scanflow.load.load_process import LoadPlan
    from scanflow.load.mlperf import MlperfSettings, Scenario
    from scanflow_client.predict_io import GrpcRequest, HttpRequest

POLL_S = 0.2
"""The interval between two reports of progress."""

MAX_DURATION_S = 24 * 3600.0
"""Limit of the duration of a load."""

OnProgress = Callable[[int, int], None]
"""Called with the number of finished requests, and of those that failed."""


def load_service(
    record: ServiceRecord, request: HttpRequest | GrpcRequest, spec: LoadSpec, *, observe: OnProgress = lambda *_: None
) -> LoadReport:
    """Load a service with a request, and return the outcome of each. Ctrl-C ends the load; its results are kept.

    Args:
        record: The service.
        request: The request, of the protocol to use.
        spec: The load.
        observe: Called periodically with the progress.

    Raises:
        InvalidError: the load has no end, too many connections, or a seed in a closed loop.
        LoadError: no connection could be made.
        MissingExtraError: the client of HTTP or gRPC is not installed.
        UnsupportedError: the service is not reached over HTTP, or has no gRPC.
    """
    from scanflow.backends.device_energy import EnergyMeter, list_own_devices

    try:
        from scanflow.load.load_process import LoadGenerator
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"Load needs the serving extra. {explain_install('serving')}") from error
    if not 1 <= spec.connections <= 10_000:
        raise InvalidError(f"{spec.connections} connections cannot be opened. Give 1 to 10000: --connections 16")
    if spec.duration_s is not None and not 0 < spec.duration_s <= MAX_DURATION_S:
        raise InvalidError("A load lasts more than 0 s and at most a day: --seconds 10")
    if spec.trace is None and spec.poisson is not None:
        raise InvalidError("In a closed loop a request is due when another has completed. Add a rate: --rate 50")
    plan = build_load_plan(
        record,
        request,
        connections=spec.connections,
        timeout_s=spec.timeout_s,
        queue_s=spec.timeout_s if spec.mlperf is None else MAX_DURATION_S,  # an offline query is due at once as a whole
    )
    if spec.trace is None and spec.mlperf is None:
        plan = replace(plan, duration_s=spec.seconds)
    arrivals = None if spec.trace is None else spec.trace.generate_arrivals(poisson=spec.poisson)
    interrupted, pause, energy = False, threading.Event(), EnergyMeter(list_own_devices(record))
    with LoadGenerator(plan, arrivals, mlperf=spec.mlperf) as load:
        try:
            while not load.over:
                observe(*load.progress)
                pause.wait(POLL_S)
        except KeyboardInterrupt:
            interrupted = True
            load.stop()
        result = load.read_result()
    return LoadReport(
        service=record.name,
        shape=record.shape,
        spec=spec,
        result=result,
        interrupted=interrupted,
        energy_j=energy.read_j(),
    )


def build_load_plan(
    record: ServiceRecord,
    request: HttpRequest | GrpcRequest | Sequence[HttpRequest],
    *,
    connections: int,
    timeout_s: float = 30.0,
    queue_s: float = 30.0,
) -> LoadPlan:
    """Return a load plan for a service, without a duration.

    Args:
        record: The service.
        request: The request, of the protocol to use; of several over REST those of the commonest shape, in turn.
        connections: The number of callers.
        timeout_s: Limit of the time to an answer.
        queue_s: Limit of the wait for a free connection.

    Raises:
        UnsupportedError: the service is not reached over plain HTTP, or has no gRPC.
    """
    from scanflow.load.load_plan import LoadPlan
    from scanflow.pki import find_authority_file, find_client_certificate
    from scanflow_client.predict_io import GrpcRequest, HttpRequest

    token = os.environ.get("SCANFLOW_SERVICE_TOKEN")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    if isinstance(request, GrpcRequest):
        scheme = "grpcs" if record.url.startswith("https:") else "grpc"
        url, bodies = f"{scheme}://{_require_grpc_address(record)}{request.method}", [request.message]
    else:
        requests = [request] if isinstance(request, HttpRequest) else select_alike(request)
        url, bodies = f"{_require_http_address(record)}{requests[0].path}", [alike.body for alike in requests]
        headers = {**requests[0].headers, **headers}
    authority, certificate = find_authority_file(), find_client_certificate() or ("", "")
    return LoadPlan(
        url=url,
        authority="" if authority is None else str(authority),
        certificate=str(certificate[0]),
        key=str(certificate[1]),
        bodies=tuple(base64.b64encode(body).decode() for body in bodies),
        headers=headers,
        connections=connections,
        timeout_s=timeout_s,
        queue_s=queue_s,
    )


def select_alike(requests: Sequence[HttpRequest]) -> list[HttpRequest]:
    """Return the requests with the commonest path and headers: a load sends the same headers with each body."""
    kinds = Counter((request.path, *sorted(request.headers.items())) for request in requests)
    (most, _), *_ = kinds.most_common(1)
    return [request for request in requests if (request.path, *sorted(request.headers.items())) == most]


def _require_http_address(record: ServiceRecord) -> str:
    if urlsplit(record.url).scheme not in {"http", "https"}:
        raise UnsupportedError(f"{record.name!r} is at {record.url}. Load is measured over http:// and https:// only.")
    return record.url.rstrip("/")


def _require_grpc_address(record: ServiceRecord) -> str:
    if record.grpc is None:
        raise UnsupportedError(
            f"{record.name!r} has no gRPC port, so no load can be sent over gRPC. Deploy it with one, "
            "serving=sf.Serving(grpc_port=None) for the next free, or leave out --grpc."
        )
    return record.grpc


def show_load_progress(show: Callable[[str], None], spec: LoadSpec) -> OnProgress:
    """Return an observer that shows the progress of a load that starts now."""
    began = time.monotonic()

    def observe(finished: int, failed: int) -> None:
        took = time.monotonic() - began
        rest = f"{took:.0f} s" if spec.duration_s is None else f"{max(0.0, spec.duration_s - took):.0f} s left"
        show(f"{finished:,} requests, {failed:,} failed, {rest}")

    return observe


def build_trace(rate: float | None, trace: str | None, seconds: float | None) -> RateTrace | None:
    """Return the rate over time of ``--rate`` or ``--trace``; None: neither is given.

    Raises:
        InvalidError: both are given, or one cannot be read.
    """
    from scanflow.load import arrivals

    if rate is not None and trace is not None:
        raise InvalidError("--rate and --trace exclude each other: a trace sets the rate.")
    if rate is not None:
        return arrivals.build_constant_rate(rate, DEFAULT_S if seconds is None else seconds)
    if trace is None:
        return None
    if not trace.endswith(".csv"):
        return arrivals.parse_trace(trace, DEFAULT_S if seconds is None else seconds)
    if seconds is not None:
        raise InvalidError(f"--seconds and {trace} exclude each other: a recorded trace sets its duration.")
    try:
        with Path(trace).open(newline="", encoding="utf-8") as lines:
            return arrivals.read_csv(lines, trace)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidError(
            f"{trace!r:.300} cannot be read: {why}. Its rows are seconds and requests a second."
        ) from error


def build_mlperf_settings(scenario: str, scale: float, *, rate: float | None, bound_s: float | None) -> MlperfSettings:
    """Return LoadGen's settings for a scenario.

    Raises:
        InvalidError: there is no such scenario, or a value is invalid.
        MissingExtraError: LoadGen is not installed.
    """
    from scanflow.load.mlperf import TABLE_4_2, scale_settings

    if scenario not in TABLE_4_2:
        scenarios = f"LoadGen has {', '.join(TABLE_4_2)}."
        raise InvalidError(f"There is no scenario {scenario!r}.{did_you_mean(scenario, TABLE_4_2)} {scenarios}")
    if find_spec("mlperf_loadgen") is None:
        raise MissingExtraError(f"LoadGen is not installed. {explain_install('mlperf')}")
    return scale_settings(cast("Scenario", scenario), scale, target_qps=rate, target_latency_s=bound_s)


def write_files(report: LoadReport, folder: Path, chart: str) -> Sequence[Path]:
    """Write a load's ``requests.csv``, ``summary.json`` and ``latency.svg``, and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in ("requests.csv", "summary.json", "latency.svg")]
    report.result.write_csv(files[0])
    files[1].write_text(json.dumps(report.summary(), indent=2) + "\n", encoding="utf-8")
    files[2].write_text(chart, encoding="utf-8")
    return files


def log_report(knowledge: KnowledgeBase, record: ServiceRecord, report: LoadReport, chart: str) -> TrackedRun:
    """Log a load as a run of the service's application: its settings, metrics and files."""
    summary = report.summary()
    metrics = {name: value for name, value in summary.items() if isinstance(value, int | float) and name in _METRICS}
    mlperf = report.result.mlperf
    if mlperf is not None:
        metrics["mlperf"] = mlperf.value
    params = {name: summary[name] for name in ("protocol", "loop", "arrivals", "connections", "wanted_rate")}
    params |= {f"shape.{name}": value for name, value in summary["shape"].items()}
    if report.spec.mlperf is not None:
        params |= {f"mlperf.{name}": value for name, value in asdict(report.spec.mlperf).items()}
    tags = {"scanflow.kind": "load", "scanflow.service": report.service}
    if mlperf is not None:
        tags |= {"mlperf.valid": str(mlperf.valid).lower(), "mlperf.metric": mlperf.metric}
    with TemporaryDirectory(prefix="scanflow-load-") as folder:
        write_files(report, Path(folder), chart)
        given_params = {name: value for name, value in params.items() if value is not None}
        return knowledge.log_run(
            record.app,
            record.team,
            name=f"load-{report.service}",
            params=given_params,
            metrics=metrics,
            tags=tags,
            artifacts=Path(folder),
            status="failed" if report.interrupted else "finished",
        )


_METRICS = frozenset(
    {
        "requests",
        "failed",
        "seconds",
        "rate",
        "samples_rate",
        "energy_j_per_1000",
        "mean_s",
        "p50_s",
        "p90_s",
        "p95_s",
        "p99_s",
        "p999_s",
        "max_s",
    }
)
"""The values of a summary that are logged as metrics; without a successful request there are no latencies."""
