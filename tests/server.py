"""A server as a process of its own, for tests: started, asked, killed, started again on the same home and port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from scanflow.app.application_files import dump_document
from scanflow.application_loading import load_application
from scanflow.http.home_token import ensure_home_token
from tests.http_requests import HTTP, http_client
from tests.serving import hold_port
from tests.waiting import PATIENCE_S, patient, wait_until


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def load_body(source: Path, **more: Any) -> dict[str, Any]:
    app, path, _ = load_application(str(source))
    return {"application": dump_document(app), "source": str(path), **more}


class ServerProcess:
    """One server; what it was asked for goes on whether it lives or not."""

    def __init__(self, home: Path, *, host: str = "127.0.0.1", environ: Mapping[str, str] | None = None) -> None:
        self.home, self.host = home, host
        self._held = hold_port(host)  # as long as it may be started again
        self.port: int = self._held.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        self.log = home.parent / "server.log"
        self.environ = {**os.environ, "SCANFLOW_SLOTS": "2", **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.token = ensure_home_token(home)
        self.api = http_client(base_url=f"{self.url}/api/v1", headers=bearer(self.token), timeout=patient(120))

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "scanflow_server"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        words = ["--home", str(self.home), "--host", self.host, "--port", str(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*self.command, *words], env=self.environ, stdout=log, stderr=log)
        if wait:
            wait_until(self.answers, f"the server answers; its log: {self.log}")

    def answers(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"The server ended with {code}:\n{self.log.read_text()}"
        try:
            return HTTP.get(f"{self.url}/readyz", timeout=patient(30)).status_code == 200
        except httpx2.TransportError:
            return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(PATIENCE_S)
            self._process = None

    def end(self) -> int:
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(PATIENCE_S)
        self._process = None
        return code

    def close(self) -> None:
        self.kill()
        self.api.close()
        self._held.close()

    def run_events(self, run: str, **headers: str) -> list[tuple[str, dict[str, Any]]]:
        with self.api.stream("GET", f"/runs/{run}/events", headers=headers) as reply:
            assert reply.status_code == 200, reply.read()
            lines = list(reply.iter_lines())
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        documents = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        return list(zip(names, documents, strict=True))

    def operation(self, begun: httpx2.Response) -> dict[str, Any]:
        assert begun.status_code == 202, begun.text
        path = f"/operations/{begun.json()['operation']}"
        wait_until(lambda: self.api.get(path).json()["state"] != "running", "the operation ends")
        answer: dict[str, Any] = self.api.get(path).json()
        return answer

    def outcomes(self) -> dict[str, list[str]]:
        answer: dict[str, list[str]] = {}
        for event in self.api.get("/events", params={"type": "run.*", "limit": 10_000}).json():
            answer.setdefault(event["subject"].removeprefix("run/"), []).append(event["type"])
        return answer
