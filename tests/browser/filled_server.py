"""A server that has a bit of everything, and real processes: runs, a service, an agent, MPI jobs, MLflow."""

from __future__ import annotations

import base64
import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from scanflow.drift.thumbnail import encode_thumbnail
from tests.browser import shop_models, shop_records
from tests.browser.shop_records import AGENT, APP, MODEL, SERVICE, TEAM
from tests.http_requests import HTTP
from tests.server import ServerProcess, load_body
from tests.waiting import patient, wait_until

SOURCE = f"""
import json
import time

import scanflow as sf

@sf.step
def load(rows: int = 5) -> list[int]:
    print("loading", rows, "rows")
    return list(range(rows))

@sf.step
def square(row: int, bad: int = -1) -> int:
    if row == bad:
        raise ValueError(f"row {{row}} is bad")
    return row * row

@sf.step
def report(rows: list[int]) -> list[dict[str, float | str]]:
    (sf.output_dir() / "digit.png").write_bytes(open("digit.png", "rb").read())
    (sf.output_dir() / "notes.txt").write_text("The first rows are the smallest.\\n" * 3)
    (sf.output_dir() / "scores.json").write_text(json.dumps({{"accuracy": 0.9, "classes": ["a", "b"]}}))
    (sf.output_dir() / "scores.csv").write_text("class,share\\nzero,0.1\\n<b>one</b>,0.9\\n")
    sf.output("summary", {{"accuracy": 0.9, "by class": {{"zero": 0.8, "one": 1.0}}, "note": "what it says " * 20}})
    words = "classification normalisation regularisation augmentation quantisation initialisation".split()
    more = {{f"{{word}} {{part}}": f"{{word}} {{part}}" for part in (1, 2) for word in words}}
    return [{{"row": row, "square": row * row, "name": f"the row {{row}}", **more}} for row in range(4)]

@sf.step
def wait_for_longer_than_anybody_looks_at_the_page_of_this_run(seconds: float = 3600.0) -> None:
    print("waiting")
    time.sleep(seconds)

class Scale:
    def transform_input(self, x):
        return x / 2

rows = load.bind(rows=5)
squares = square.map(rows)
training = sf.Workflow(name="training", nodes=[rows, squares, report.bind(rows=squares)])
broken = sf.Workflow(name="broken", nodes=[rows, square.map(rows, bad=3)])
long = wait_for_longer_than_anybody_looks_at_the_page_of_this_run.bind(seconds=3600.0)
waiting = sf.Workflow(name="waiting", nodes=[long])
scale = sf.Service(name="scale", role="TRANSFORMER", implementation="app.py:Scale")
classify = sf.Service(name="classify", model="models:/{MODEL}/2", resources=sf.Resources(cpu=0.2))
digits = sf.Workflow(name="{SERVICE}", type="online", nodes=[scale, classify], edges=scale >> classify)

def job(name, ranks, *args):
    node = sf.MPIWorkload(
        name="solve", mainfile="ranks.sh", args=args, n_tasks=ranks, flavor="openmpi", oversubscribe=True
    )
    return sf.Workflow(name=name, type="mpi", nodes=[node])

app = sf.Application(
    name="{APP}", team="{TEAM}",
    workflows=[training, broken, waiting, digits, job("short", 2, "0"), job("long", 3, "3600"), job("next", 2, "0")],
    agents=[sf.Agent(name="{AGENT}", template="tracker", parameters={{"checker": "{AGENT}"}})],
    notify=[sf.Webhook(url="https://hooks.example/secret", on=["drift"])],
)
"""
RANKS = '#!/bin/sh\necho "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"\nsleep "$1"\n'
PNG = encode_thumbnail(np.arange(784).reshape(28, 28) % 97)
assert PNG is not None
MORE_PAGES = (
    "/runs/{succeeded}?task=report",
    "/runs/{running}",
    "/runs/{queued}",
    "/events/{drift}",
    "/actions/i-promoted",
    "/actions?state=failed",
    "/mpi?run={ended}",
)
"""Addresses beside those of the pages alone: what else a page shows."""


class FilledServer(ServerProcess):
    """The server, and the names of what it has. ``SCANFLOW_HOME`` is its home."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, environ={"SCANFLOW_SLOTS": "3"})  # one job has to wait for another
        folder = home.parent
        self.source = folder / "app.py"
        self.source.write_text(SOURCE)
        (folder / "digit.png").write_bytes(PNG or b"")
        (folder / "ranks.sh").write_text(RANKS)
        (folder / "ranks.sh").chmod(0o755)
        self._mlflow, self._endless = ExitStack(), list[str]()

    def fill(self) -> None:
        self._mlflow.enter_context(shop_models.serve_mlflow(self.home))
        shop_records.fill_store(self.home / "server" / "scanflow.db")
        self.start()
        body = load_body(self.source)
        self.api.put(f"/applications/{APP}", json=body).raise_for_status()
        self.ended = self.begin_run("short")
        self.succeeded, self.failed, self.running = (self.begin_run(name) for name in ("training", "broken", "waiting"))
        self.api.put(f"/agents/{APP}/{AGENT}", json=body).raise_for_status()
        self.request_labels("picture", run="wolf", picture=encode_picture(), data={"shape": [28, 28]})
        self.request_labels("row", run="wolf", row={"latitude": 1.5, "city": "<b>Vic</b>"})
        shop_models.register_versions(self.home, self.succeeded)
        self.search = shop_models.log_search(self.home, self.source)
        self._serve(body)
        self.wait_for_run(self.ended, "succeeded")
        self.occupying, self.queued = self.begin_run("long"), self.begin_run("next")
        self._endless += [self.running, self.queued, self.occupying]
        for run, state in ((self.succeeded, "succeeded"), (self.failed, "failed"), (self.running, "running")):
            self.wait_for_run(run, state)
        wait_until(
            lambda: any(task.get("place") for task in self.get_run(self.occupying)["tasks"]), "the job has its cores"
        )
        (drift, *_) = self.api.get("/events", params={"type": "drift.found"}).json()
        self.drift = drift["id"]

    def wait_for_run(self, run: str, state: str) -> None:
        wait_until(lambda: self.get_run(run)["state"] == state, f"the run {run} is {state}")

    def close(self) -> None:
        """End what it has started, too."""
        if self._process is not None and self._endless:
            self.api.delete(f"/agents/{APP}/{AGENT}").raise_for_status()
            for run in self._endless:
                self.api.post(f"/runs/{run}/stop").raise_for_status()
                self.wait_for_run(run, "stopped")
        super().close()
        self._mlflow.close()

    def begin_run(self, workflow: str) -> str:
        answer = self.api.post("/runs", json=load_body(self.source, workflow=workflow))
        assert answer.status_code == 201, answer.text
        return str(answer.json()["name"])

    def get_run(self, name: str) -> dict[str, Any]:
        return dict(self.api.get(f"/runs/{name}").json())

    def make_token(self, name: str, role: str = "admin") -> str:
        return str(self.api.post("/tokens", json={"name": name, "role": role}).json()["token"])

    def request_labels(self, *ids: str, **about: Any) -> None:
        items = [{"id": id, "guess": 3, "run": "fox", **about} for id in ids]
        self.api.post("/labels", json={"app": APP, "team": TEAM, "items": items}).raise_for_status()

    def find_address(self, path: str) -> str:
        """Return the address of a page for something that the server has.

        Raises:
            KeyError: the path has a parameter that has no value here. Give it one.
        """
        by_section = {
            "actions": {"id": "i-2"},
            "events": {"id": "1"},
            "services": {"name": SERVICE},
            "tuning": {"id": self.search},
        }
        values = {"run": self.failed, "app": APP, "agent": AGENT, "name": AGENT, "team": TEAM, "model": MODEL}
        values |= {"service": SERVICE, "task": "square.3", "step": "load"}
        values |= {name: str(getattr(self, name)) for name in ("succeeded", "running", "queued", "ended", "drift")}
        values |= by_section.get(path.split("/")[1], {})
        address = re.sub(r"{(\w+)[^}]*}", lambda match: values[match[1]], path)
        return f"{address}?with={self.succeeded}" if path.endswith("/compare") else address

    def _serve(self, body: dict[str, Any]) -> None:
        """Deploy the service, and have requests answered by the version in use and by a canary."""
        deployed = self.operation(self.api.post("/services", json={**body, "workflow": SERVICE}))
        assert deployed["state"] == "succeeded", deployed
        self._predict()
        policy = {"metric": "errors", "after_requests": 100_000}
        change = {"model": f"models:/{MODEL}/3", "weight": 0.3, "policy": policy, "reason": "Is it as good here?"}
        self._tell("service.unready", "degraded")
        changed = self.operation(self.api.patch(f"/services/{SERVICE}", json=change))
        assert changed["state"] == "succeeded", changed
        self._tell("service.ready", "ready")
        self._predict()

    def _tell(self, type: str, state: str) -> None:
        event = {"at": time.time(), "type": type, "app": APP, "subject": f"service/{SERVICE}", "data": {"state": state}}
        self.api.post("/events", json=[event]).raise_for_status()

    def _predict(self) -> None:
        url = f"{self.api.get(f'/services/{SERVICE}').json()['url']}/api/v1.0/predictions"
        for number in range(20):
            row = [float(number)] * (4 if number % 10 else 3)  # of which the model takes none
            HTTP.post(url, json={"data": {"ndarray": [row]}}, timeout=patient(30))


def encode_picture() -> str:
    return base64.b64encode(PNG or b"").decode()
