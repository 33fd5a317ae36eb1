"""A whole plant for fault tests: a real server, the agents that it keeps running, services, runs, and a ledger in which
steps note what they did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from scanflow.app.application_files import dump_document
from scanflow.application_loading import load_application
from scanflow.processes.background_jobs import Job
from tests.http_requests import HTTP
from tests.permissions import permit_strategies_at
from tests.server import ServerProcess, bearer, load_body
from tests.waiting import patient, wait_until

PATIENCE_S = patient(200)
"""For what imports MLflow on its way. A version is fetched by a process that comes last on the CPUs, by design, and
beside other tests that takes its time."""


class Plant:
    """One application on one server. Each process of it may be killed, and is found again."""

    def __init__(self, folder: Path, home: Path, files: Mapping[str, str], **environ: str) -> None:
        """``files`` are the application's, ``app.py`` among them; ``environ`` is for the server and all it starts."""
        self.folder, self.home = folder, home
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.server = ServerProcess(home, environ={"TEST_FOLDER": str(folder), **environ})
        self.body = load_body(folder / "app.py")
        self.app = str(self.body["application"]["name"])

    def keep(self) -> None:
        """Let the server know the application: what an agent that is hosted by hand wants can then be done."""
        self.server.api.put(f"/applications/{self.app}", json=self.body).raise_for_status()

    def close(self) -> None:
        """End all agents and all that drives runs, and the server first, so that it starts none of them anew."""
        self.release()
        self.server.close()
        for path in sorted((self.home / "server").glob("*/*/*/attempts")):
            _end(Job(path.parent))

    def hold(self) -> None:
        (self.folder / "hold").touch()

    def release(self) -> None:
        (self.folder / "hold").unlink(missing_ok=True)

    def get(self, path: str, **params: Any) -> Any:
        reply = self.server.api.get(path, params=params)
        assert reply.status_code == 200, reply.text
        return reply.json()

    # -- agents

    def start(self, *agents: str) -> None:
        for agent in agents:
            self.server.api.put(f"/agents/{self.app}/{agent}", json=self.body).raise_for_status()
        for agent in agents:
            self.wait_for_agent(agent)

    def wait_for_agent(self, agent: str) -> None:
        wait_until(
            lambda: self.answers(agent),
            f"the agent {agent} answers; see {self.server.log} and {self.get_log_path(agent)}",
        )

    def answers(self, agent: str) -> bool:
        url = self.view(agent)["url"]
        try:
            return url is not None and HTTP.get(f"{url}/healthz", timeout=patient(60)).status_code == 200
        except httpx2.TransportError:
            return False

    def view(self, agent: str) -> dict[str, Any]:
        view: dict[str, Any] = self.get(f"/agents/{self.app}/{agent}")
        return view

    def get_log_path(self, agent: str) -> Path:
        return Job(self.home / "server" / "agents" / self.app / agent).log

    def kill(self, agent: str) -> None:
        assert _end(Job(self.home / "server" / "agents" / self.app / agent)), f"{agent} does not run"

    def ask(self, agent: str, method: str, path: str, body: Any = None, *, key: str | None = None) -> Any:
        headers = bearer(self.server.token) | ({} if key is None else {"idempotency-key": key})
        asked = HTTP.request(method, self.view(agent)["url"] + path, json=body, headers=headers, timeout=patient(60))
        assert asked.is_success, asked.text
        return asked.json()

    def call(self, agent: str, sensor: str, *args: Any, key: str | None = None, **kwargs: Any) -> str:
        body = {"args": list(args), "kwargs": kwargs}
        return str(self.ask(agent, "POST", f"/sensors/{sensor}", body, key=key)["sample"])

    def fire(self, agent: str, sensor: str) -> None:
        self.ask(agent, "POST", f"/sensors/{sensor}/fire", {})

    def sensor(self, agent: str, name: str) -> dict[str, Any]:
        return next(sensor for sensor in self.ask(agent, "GET", "/sensors") if sensor["name"] == name)

    def journal(self, agent: str, kind: str, subject: str | None = None) -> list[dict[str, Any]]:
        entries = self.ask(agent, "GET", f"/journal?kind={kind}&limit=10000")
        return [entry["body"] for entry in entries if subject in {None, entry["subject"]}]

    def samples(self, agent: str, sensor: str) -> list[dict[str, Any]]:
        return self.journal(agent, "sample", sensor)

    # -- what they want, and what came of it

    def actions(self, **fields: Any) -> list[dict[str, Any]]:
        intents = reversed(self.get("/intents", app=self.app, limit=1000))
        wanted = {"source": "agent", **fields}  # people's own commands are listed with them
        return [intent for intent in intents if all(intent["intent"][name] == value for name, value in wanted.items())]

    def list_done_actions(self, **fields: Any) -> list[dict[str, Any]]:
        return [action for action in self.actions(**fields) if action["decision"]["verdict"] == "act"]

    def list_refused_actions(self, **fields: Any) -> list[dict[str, Any]]:
        return [action for action in self.actions(**fields) if action["decision"]["verdict"] == "refuse"]

    def count_refusals(self) -> int:
        """Return how often something was refused; a refusal that repeats is counted with the first."""
        return sum(1 + action["repeats"] for action in self.list_refused_actions())

    def wait_for_end(self, **fields: Any) -> dict[str, Any]:
        what = f"{fields} is over; see {self.server.log}"
        wait_until(
            lambda: [action for action in self.list_done_actions(**fields) if action["ended"] is not None],
            what,
            patience_s=PATIENCE_S,
        )
        (record,) = self.list_done_actions(**fields)
        return record

    def explain(self, id: str) -> str:
        return "\n".join(self.get(f"/intents/{id}/why")["lines"])

    def runs(self, workflow: str) -> list[dict[str, Any]]:
        return [run for run in self.get("/runs", limit=1000) if run["workflow"] == workflow]

    def ended_runs(self, workflow: str, count: int, *, state: str = "succeeded") -> list[dict[str, Any]]:
        def have_all_ended() -> bool:
            states = Counter(run["state"] for run in self.runs(workflow))
            return states[state] >= count and not states["running"]

        wait_until(
            have_all_ended, f"{count} runs of {workflow} have {state}; see {self.server.log}", patience_s=PATIENCE_S
        )
        return self.runs(workflow)

    def notes(self) -> list[str]:
        return self.ledger.read_text(encoding="utf-8").splitlines()

    # -- services

    def deploy(self, workflow: str) -> str:
        done = self.server.operation(self.server.api.post("/services", json={**self.body, "workflow": workflow}))
        assert done["state"] == "succeeded", done
        return str(done["result"]["url"])

    def service(self, name: str) -> dict[str, Any]:
        view: dict[str, Any] = self.get(f"/services/{name}")
        return view

    def get_served_models(self, name: str) -> dict[str, str]:
        current = next(revision for revision in self.service(name)["revisions"] if revision["role"] == "current")
        models: dict[str, str] = current["models"]
        return models

    # -- agents that are hosted by hand

    @contextmanager
    def host_agent(self, agent: str, **fields: Any) -> Iterator[None]:
        """Host an agent beside those that the server starts, with limits of its own: fields of ``AgentSpec``."""
        self.keep()
        folder = self.folder / f"hosted-{agent}"
        folder.mkdir()
        app, source, _ = load_application(str(self.folder / "app.py"))
        permit_strategies_at(self.home, app=app.name, agent=agent, team=app.team)
        spec = {"application": dump_document(app), "source": str(source), "agent": agent, **fields}
        spec |= {"server": self.server.url, "home": str(self.home), "heartbeat_s": 0.5}
        (folder / "agent.json").write_text(json.dumps(spec))
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "scanflow_agents", str(folder)],
                stdout=log,
                stderr=log,
                env={**os.environ, "TEST_FOLDER": str(self.folder)},
            )
        try:
            wait_until(lambda: self._is_known(agent) and self.answers(agent), f"{agent} answers; see {folder / 'log'}")
            yield
        finally:
            process.kill()
            process.wait(patient(60))

    def _is_known(self, agent: str) -> bool:
        return any(listed_agent["name"] == agent for listed_agent in self.get("/agents"))


def _end(job: Job) -> bool:
    """Kill a job's process, if it has one, and return when it is gone; another may have been started since."""
    pid = job.pid
    if pid is None:
        return False
    job.daemon.kill()
    wait_until(lambda: job.pid != pid, f"the process of {job.path} is gone")
    return True
