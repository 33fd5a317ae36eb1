"""Benchmarks that start servers and agents run to their end, for a moment each: that is tested, and no figure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks import control_suite
from tests.benchmarks.clients import bytes_through, callers
from tests.benchmarks.measure import Places
from tests.benchmarks.servers import Probe, free_port, oip, start_server
from tests.benchmarks.serving_suite import QUICK, serving
from tests.benchmarks.starters import PROGRAMS

SCRIPTS = Path(sys.executable).parent
NOWHERE = Path("not-installed")
PLACES = Places(ours=SCRIPTS, peers=NOWHERE, servers=NOWHERE, checkout=Path(__file__).resolve().parents[2])
BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in [*serving(PLACES, QUICK), *control_suite.control(PLACES, control_suite.QUICK)]
}
OURS = [
    (name, contender)
    for name, benchmark in BENCHMARKS.items()
    for contender in benchmark.contenders
    if contender not in {"Starlette", "MLServer", "MLflow", "Prefect"}
]


@pytest.mark.benchmark
@pytest.mark.parametrize(("name", "contender"), OURS, ids=[f"{name}, {contender}" for name, contender in OURS])
def test_a_benchmark_measures_all_that_it_reports(name: str, contender: str, tmp_path: Path) -> None:
    benchmark = BENCHMARKS[name]
    metrics = benchmark.contenders[contender](tmp_path)
    assert set(metrics) == {metric.key for metric in benchmark.metrics}
    # What a killed instance had read is lost with it: one request of each of its connections at most.
    failed = {key: value for key, value in metrics.items() if key.endswith("_failed")}
    may_fail = {"crash_failed": 8, "failover_failed": 8}
    assert all(count <= may_fail.get(key, 0) for key, count in failed.items()), failed


def test_every_program_of_ours_is_a_good_application() -> None:
    from scanflow.application_loading import load_application

    for folder in ("noop", "reverse", "images", "resnet", "changes"):
        application, _, _ = load_application(str(PROGRAMS / folder / "app.py"))
        assert all(workflow.type == "online" for workflow in application.workflows), folder


@pytest.mark.benchmark
def test_what_a_server_answers_is_timed_and_weighed_and_the_server_is_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    port = free_port()
    probe = Probe(path="/", body=oip("input", [1, 2]), headers={"accept": "application/json"})
    with start_server([sys.executable, "echo.py", str(port)], tmp_path, port=port, probe=probe) as server:
        assert server.memory_mb() > 1
        assert server.memory_mb("no such word") == 0
        assert callers(server.url("/"), probe.body, connections=2, seconds=1.0).failed == 0
        assert bytes_through(port, "/", size=70_000, clients=2, seconds=1.0, folder=tmp_path)["mib_s"] > 0
    assert server.processes() == []


ECHO = """
import http.server, sys

class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))[::-1]
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"""
