"""A program's or a notebook's own functions and classes on a server: sent by value, loaded by their steps alone."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.deployer.functions_by_value import read_versions
from tests.server import ServerProcess
from tests.waiting import patient

PROGRAM = """
import dataclasses, os, sys
import scanflow as sf
import helper

@dataclasses.dataclass
class Point:
    x: int
    def moved(self, by):
        return Point(self.x + by)

class Marked:
    def __reduce__(self):  # says which process loads it
        return exec, ("import os\\nopen('loaded', 'a').write(f'{os.getpid()} ')",)

mark = Marked()
OFFSET = 10

@sf.step(cache=True)
def make(count: int = 2) -> list:
    mark
    open("steps", "a").write(f"{os.getpid()} ")
    return [Point(helper.double(n) + OFFSET) for n in range(count)]

@sf.step
def total(points: list) -> int:
    open("steps", "a").write(f"{os.getpid()} ")
    return sum(point.moved(1).x for point in points)

made = make.bind()
app = sf.Application(name="notebook", team="tests", workflows=[sf.Workflow(name="w", nodes=[made, total.bind(made)])])
client = sf.Client(sys.argv[1], token=sys.argv[2], progress=False)
assert [step.runs for step in client.plan(app).steps] == ["by value: make", "by value: total"]
record = client.run(app, parameters={"count": 3})
print(record.name, client.output("total"))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("server") / "home")
    process.start()
    yield process
    process.close()


def run(server: ServerProcess, folder: Path) -> tuple[str, str]:
    (folder / "helper.py").write_text("def double(n):\n    return 2 * n\n")
    command = [sys.executable, "-c", PROGRAM, server.url, server.token]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=patient(120), check=False)
    assert done.returncode == 0, done.stderr
    name, value = done.stdout.split()
    return name, value


def test_functions_and_classes_of_a_program_run_on_a_server_and_are_loaded_by_their_steps_alone(
    server: ServerProcess, tmp_path: Path
) -> None:
    name, value = run(server, tmp_path)
    assert value == str((0 + 2 + 4) + 3 * 10 + 3)
    first, second = (tmp_path / "steps").read_text().split()
    assert (tmp_path / "loaded").read_text().split() == [first], "neither the server nor what drives runs loaded it"
    assert second != first

    spun = server.api.post(f"/runs/{name}/spin", json={"step": "make", "parameters": {"count": 1}})
    assert spun.status_code == 201, spun.text
    assert server.run_events(spun.json()["name"])[-1][1]["record"]["state"] == "succeeded"
    assert len((tmp_path / "steps").read_text().split()) == 3
    assert len((tmp_path / "loaded").read_text().split()) == 2


def test_what_is_not_signed_by_this_home_is_not_loaded(server: ServerProcess, tmp_path: Path) -> None:
    run(server, tmp_path)
    before = (tmp_path / "loaded").read_text()
    files = list((server.home / "functions").glob("*.pickle"))
    assert len(files) >= 2
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    for file in files:
        content = bytearray(file.read_bytes())
        content[0] ^= 1
        file.write_bytes(content)
    kept_app = server.api.get("/applications/notebook").json()["application"]
    again = server.api.post("/runs", json={"application": kept_app, "parameters": {"count": 7}})
    record = server.run_events(again.json()["name"])[-1][1]["record"]
    assert record["state"] == "failed"
    assert "was not signed" in json.dumps(record)
    assert (tmp_path / "loaded").read_text() == before


def test_functions_come_with_a_token_and_of_the_same_versions_only(server: ServerProcess) -> None:
    body = {"pickled": base64.b64encode(b"not a pickle at all").decode(), **read_versions()}
    taken = server.api.post("/functions", json=body)
    assert taken.status_code == 201, "its bytes are nobody's business before its step runs"
    assert server.api.post("/functions", json=body).json() == taken.json()
    assert server.api.post("/functions", json=body, headers={"authorization": "Bearer other"}).status_code == 401
    other = server.api.post("/functions", json={**body, "python": "CPython 2.7"})
    assert other.status_code in {400, 422}
    assert "python CPython 2.7" in other.json()["detail"]
    assert server.api.post("/functions", json={**body, "pickled": "%"}).status_code == 422
    nowhere = {"name": "w", "nodes": [{"kind": "executor", "name": "a", "function": f"{'0' * 64}.pickle:a"}]}
    app = {"schema": "scanflow/v1", "name": "gone", "app_dir": "/", "workflows": [nowhere]}
    missing = server.api.post("/runs", json={"application": app})
    assert (missing.status_code, "is not in this home" in missing.text) == (404, True)
