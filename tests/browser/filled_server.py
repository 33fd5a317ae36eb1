"""A server that has a bit of everything, and real processes: runs, a service, an agent, an MPI job, labels, actions."""

from __future__ import annotations

import base64
import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from scanflow.drift.thumbnail import encode_thumbnail
from scanflow_server.store import event_store, intent_store
from scanflow_server.store.base import open_store
from scanflow_server.store.migrations import migrate
from tests.server import ServerProcess, load_body
from tests.unit.server.server_rows import make_action_row
from tests.waiting import wait_until

TEAM = "data"
SOURCE = """
import time
import scanflow as sf

@sf.step
def load(rows: int = 5) -> list[int]:
    print("loading", rows, "rows")
    return list(range(rows))

@sf.step
def square(row: int, bad: int = -1) -> int:
    if row == bad:
        raise ValueError(f"row {row} is bad")
    return row * row

@sf.step
def wait(seconds: float = 3600.0) -> None:
    print("waiting")
    time.sleep(seconds)

class Classify:
    def predict(self, x):
        return x.sum(axis=-1, keepdims=True)

rows = load.bind(rows=5)
training = sf.Workflow(name="training", nodes=[rows, square.map(rows)])
broken = sf.Workflow(name="broken", nodes=[rows, square.map(rows, bad=3)])
waiting = sf.Workflow(name="waiting", nodes=[wait.bind(seconds=3600.0)])
digits = sf.Workflow(
    name="digits", type="online",
    nodes=[sf.Service(name="classify", implementation="app.py:Classify", resources=sf.Resources(cpu=0.2))],
)
app = sf.Application(
    name="shop", team="data", workflows=[training, broken, waiting, digits],
    agents=[sf.Agent(name="watch", template="tracker", parameters={"checker": "watch"})],
    notify=[sf.Webhook(url="https://hooks.example/secret", on=["drift"])],
)
"""
PNG = encode_thumbnail(np.arange(784).reshape(28, 28) % 97)
assert PNG is not None


class FilledServer(ServerProcess):
    """The server, and the names of what it has."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, environ={"SCANFLOW_SLOTS": "4"})
        self.source = home.parent / "app.py"
        self.source.write_text(SOURCE)
        self._fill_store()
        self.start()
        body = load_body(self.source)
        self.api.put("/applications/shop", json=body).raise_for_status()
        self.succeeded, self.failed, self.running = (self.begin_run(name) for name in ("training", "broken", "waiting"))
        self.api.put("/agents/shop/watch", json=body).raise_for_status()
        self.request_labels("picture", run="wolf", picture=encode_picture(), data={"shape": [28, 28]})
        self.request_labels("row", run="wolf", row={"latitude": 1.5, "city": "<b>Vic</b>"})
        deployed = self.operation(self.api.post("/services", json={**body, "workflow": "digits"}))
        assert deployed["state"] == "succeeded", deployed
        for run, state in ((self.succeeded, "succeeded"), (self.failed, "failed"), (self.running, "running")):
            self.wait_for_run(run, state)

    def wait_for_run(self, run: str, state: str) -> None:
        wait_until(lambda: self.get_run(run)["state"] == state, f"the run {run} is {state}")

    def close(self) -> None:
        """End what it has started, too."""
        if self._process is not None:
            self.api.delete("/agents/shop/watch").raise_for_status()
            self.api.post(f"/runs/{self.running}/stop").raise_for_status()
            wait_until(lambda: self.get_run(self.running)["state"] != "running", "the run has stopped")
        super().close()

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
        self.api.post("/labels", json={"app": "shop", "team": TEAM, "items": items}).raise_for_status()

    def find_address(self, path: str) -> str | None:
        """Return the address of a page for something that the server has; None: it has none.

        Raises:
            KeyError: the path has a parameter that has no value here. Give it one.
        """
        section = path.split("/")[1]
        if section in {"tuning", "models"} and "{" in path:
            return None  # they are in MLflow, which does not run here
        by_section = {"actions": {"id": "i-2"}, "events": {"id": "1"}, "services": {"name": "digits"}}
        values = {"run": self.failed, "app": "shop", "agent": "watch", "name": "watch", "team": TEAM}
        values |= {"service": "digits", "task": "square.3", "step": "load", **by_section.get(section, {})}
        address = re.sub(r"{(\w+)[^}]*}", lambda match: values[match[1]], path)
        return f"{address}?other={self.succeeded}" if path.endswith("/compare") else address

    def _fill_store(self) -> None:
        """Store what agents would have done for days, before the server starts."""
        (self.home / "server").mkdir(parents=True, exist_ok=True)
        with closing(open_store(f"sqlite:///{self.home / 'server' / 'scanflow.db'}")) as store:
            migrate(store)
            about: dict[str, Any] = {"app": "shop", "team": TEAM, "agent": "watch"}
            with store.write() as connection:
                for number in range(1, 4):
                    arguments = {"workflow": "training", "app": "shop", "team": TEAM}
                    row = make_action_row(
                        f"i-{number}", "pending", "approve", **about, key=f"k-{number}", arguments=arguments
                    )
                    intent_store.add(connection, row)
                for type in ("predictions.counted", "drift.found", "labels.given"):
                    data = {"agent": "watch", "predictions": 9, "new": 3, "anomalies": 2}
                    event_store.record(
                        connection, type, "agent/watch", at=time.time(), app="shop", team=TEAM, data=data
                    )


def encode_picture() -> str:
    return base64.b64encode(PNG or b"").decode()
