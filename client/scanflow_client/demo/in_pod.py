"""The program of the demo's pod on a cluster, which :mod:`scanflow_client.demo.in_cluster` starts.

The server listens on the pod's address, where agents reach it, and requires tokens.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scanflow.app.application import Application
from scanflow.deployer import EmbeddedDeployer, RemoteDeployer, RunRequest
from scanflow.errors import ScanflowError, StepFailedError, UnavailableError
from scanflow.settings import Settings
from scanflow.transport import ServerClient, is_reachable
from scanflow_client.control_client import ControlClient
from scanflow_client.control_plane import PORT
from scanflow_client.demo.demo_application import load_small_demo
from scanflow_client.demo.in_cluster import REPORT
from scanflow_client.demo.loop import format_loop, render_report
from scanflow_client.demo.session import DemoSession
from scanflow_client.formatting.run_text import format_failure, format_outcome
from scanflow_client.progress import show_run_progress

PATIENCE_S: Final = 180.0
FETCH_S: Final = 120.0
"""How long the report can be fetched before the pod ends."""


def main() -> None:
    """Run the demo, and print the path of its report."""
    settings = Settings.from_environment()
    image = os.environ["SCANFLOW_KUBERNETES_IMAGE"]
    app, path = load_small_demo()
    say(f"The demo is an application like yours: {path.name} of tutorials/mnist, in the image {image}")
    environments = EmbeddedDeployer(settings).environments(app)
    tracker, token = environments.ensure(app).tracker_uri, environments.read_tracker_token(app)
    assert tracker is not None
    os.environ["SCANFLOW_TRACKER_URI"] = tracker
    os.environ["MLFLOW_TRACKING_TOKEN"] = token or ""
    _wait_until(lambda: is_reachable(f"{tracker}/health"), f"the tracker at {tracker} answers")
    with _run_server(settings.home, os.environ["POD_IP"]) as (url, token):
        deployer, client = RemoteDeployer(url, token), ControlClient(lambda: ServerClient(url, token=token))
        report = _run_session(deployer, client, app, path, settings.home)
    print(f"{REPORT}{report}", flush=True)
    threading.Event().wait(FETCH_S)


def _run_session(deployer: RemoteDeployer, client: ControlClient, app: Application, path: Path, home: Path) -> Path:
    session = DemoSession(deployer, client, app, path, say=say)
    session.check_free()
    with show_run_progress(sys.stdout) as observe:
        record = deployer.run(RunRequest(app, "mnist-wf", source=path), observe=observe)
    if record.state != "succeeded":
        raise StepFailedError("\n".join(format_failure(record)))
    say(format_outcome(record))
    loop = session.close_the_loop(None, keep=False, stream=sys.stdout)
    report = home / "demo.html"
    report.write_text(render_report(client, app, loop), encoding="utf-8")
    say(*format_loop(loop, report)[:-1])
    return report


@contextmanager
def _run_server(home: Path, host: str) -> Iterator[tuple[str, str]]:
    url, token = f"http://{host}:{PORT}", f"scanflow_{secrets.token_urlsafe(32)}"
    place = {"SCANFLOW_SERVER_HOST": host, "SCANFLOW_SERVER_PORT": str(PORT), "SCANFLOW_SERVER_TOKEN": token}
    # Plain HTTP between pods, during the demo only: the token is valid for nothing but the demo's own server.
    environment = {**os.environ, **place, "SCANFLOW_BEHIND_PROXY": "1"}
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = home / "server.log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "scanflow_server"]
        with subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT) as server:
            try:
                client = ServerClient(url, token=token)
                _wait_until(lambda: server.poll() is not None or client.is_ready()[0], "the server is ready")
                if server.poll() is not None:
                    raise UnavailableError(f"The server has ended: {log.read_text(errors='replace')[-2000:]}")
                yield url, token
            finally:
                server.terminate()


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up:
            raise UnavailableError(f"Timed out after {PATIENCE_S:.0f} s of waiting until {what}.")
        time.sleep(0.5)


def say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    try:
        main()
    except ScanflowError as problem:
        sys.exit(f"Error: {problem}")
