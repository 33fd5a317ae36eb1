"""The services of one home, deployed as tests need them: of real instances, or of stand-ins for them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import scanflow as sf
from scanflow.app.workflow import Workflow
from scanflow.backends.local.services.api import LocalServices
from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import Progress, ServiceRecord, Shape
from scanflow.instance_messages import ModelFiles
from scanflow.settings import Settings
from tests.waiting import patient, wait_until


class Services:
    """``told`` and ``remembered``: what was told meanwhile, and the shapes that were kept with versions of models."""

    def __init__(
        self, home: Path, code: str, *, program: tuple[str, ...] = ("-m", "scanflow_serving"), tls: bool = False
    ) -> None:
        self.home, self.folder = home, home / "work"
        self.messages: list[str] = []
        self.remembered: dict[tuple[str, int], Shape] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "model.py").write_text(code)
        self.local = LocalServices(
            Settings(home=home, tls=tls),
            fetch=self.fetch,
            remember=lambda name, version, shape: self.remembered.__setitem__((name, version), shape),
            recall=lambda name, version: self.remembered.get((name, version)),
            program=program,
            timeout_s=patient(240),
        )

    def fetch(self, uri: str) -> ModelFiles:
        name, _, version = uri.removeprefix("models:/").partition("/")
        return ModelFiles(name=name, version=int(version), path=str(self.folder / version))

    def observe(self, progress: Progress) -> None:
        self.messages.append(progress.text)

    def app(self, *workflows: Workflow, name: str = "shop") -> sf.Application:
        return sf.Application(name=name, app_dir=self.folder, workflows=workflows)

    def workflow(self, name: str = "w", *, serving: sf.Serving | None = None, **service: Any) -> Workflow:
        if "model" not in service:
            service["implementation"] = "model.py:Model"
        node = sf.Service(name="model", **service)
        return sf.Workflow(name=name, type="online", nodes=[node], serving=serving or sf.Serving(grpc_port=0))

    def deploy(self, name: str = "w", **fields: Any) -> ServiceRecord:
        return self.deploy_workflow(self.app(self.workflow(name, **fields)), name)

    def deploy_workflow(self, app: sf.Application, workflow: str) -> ServiceRecord:
        return self.local.deploy(Deployment(app, workflow), observe=self.observe)

    def change(self, name: str = "w", **fields: Any) -> ServiceRecord:
        return self.local.change(name, ServiceChange(**fields), observe=self.observe)

    def path(self, name: str = "w") -> ServiceFolder:
        return ServiceFolder(self.home / "services" / name)

    def supervisor(self, name: str = "w") -> int:
        return int(self.path(name).supervised.read_text())

    def pids(self, name: str = "w") -> set[int]:
        instances = self.local.service(name).instances
        return {instance.pid for instance in instances if instance.state == "ready" and instance.pid is not None}

    def eventually(self, true: Callable[[ServiceRecord], object], what: str, name: str = "w") -> ServiceRecord:
        wait_until(lambda: true(self.local.service(name)), what)
        return self.local.service(name)

    def delete_all(self) -> None:
        for record in sorted(self.local.services(), key=lambda record: record.backup is None):
            self.local.delete(record.name)


def processes(home: Path) -> list[psutil.Process]:
    parents: set[psutil.Process] = set()
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(str(home) in word for word in process.cmdline()):
                parents |= {process, *process.children()}
                parent = process.parent()
                if parent is not None and is_shim(parent):
                    parents.add(parent)
        except psutil.Error:
            continue
    return list(parents)


def is_shim(process: psutil.Process) -> bool:
    return any(word.endswith("restarter.py") for word in process.cmdline())


def kill(pid: int | None) -> None:
    try:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
