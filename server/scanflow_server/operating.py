"""One change of a service, in a process of its own: made once, also where the process is killed in the middle of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scanflow.app.files import load_json
from scanflow.backends.local.services.layout import ServicesHome
from scanflow.backends.local.services.settling import Watcher, wait_until_settled
from scanflow.backends.service_records import Judgement, Progress, ServiceRecord
from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.errors import NotFoundError, ScanflowError
from scanflow.settings import Settings
from scanflow.transport.problems import problem_of
from scanflow_server.jobs import Job, Lines

__all__ = ["operate"]

_log = logging.getLogger(__name__)

TIMEOUT_S = 600.0


def operate(job: Job, order: Mapping[str, Any]) -> None:
    """Make the change and write down what came of it."""
    deployer = EmbeddedDeployer(Settings.model_validate(order["settings"]))
    lines = Lines(job.lines)

    def tell(progress: Progress) -> None:
        lines.append(json.dumps({"text": progress.text}))

    again = job.begun is not None
    begun = job.begin({"generation": _generation(deployer, order["service"])})
    try:
        record = _change(deployer, order, int(begun["generation"]), again, tell)
    except ScanflowError as error:
        _log.warning("It cannot be done: %s", error)
        job.end({"result": None, "problem": problem_of(error)[1]})
        return
    job.end({"result": None if record is None else record.model_dump(mode="json"), "problem": None})


def _change(
    deployer: EmbeddedDeployer, order: Mapping[str, Any], before: int, again: bool, tell: Any
) -> ServiceRecord | None:
    kind, name, given = str(order["kind"]), str(order["service"]), dict(order["request"])
    if kind == "delete":
        try:
            deployer.delete(name, observe=tell)
        except NotFoundError:
            if not again:
                raise
        return None
    if again and kind in {"promote", "rollback"} and _generation(deployer, name) > before:
        # It was asked for already, and asked for twice it would be another change: see how it ends.
        folder = ServicesHome(Path(order["settings"]["home"]).absolute() / "services").service(name)
        return wait_until_settled(folder, before + 1, Watcher(folder, tell), TIMEOUT_S)
    if kind == "deploy":
        app = load_json(json.dumps(given.pop("application")))
        source = given.pop("source")
        return deployer.deploy(app, name, source=None if source is None else Path(source), observe=tell, **given)
    if kind == "scale":
        return deployer.scale(name, observe=tell, **given)
    if kind == "traffic":
        judgement = given.pop("judgement", None)
        judged = None if judgement is None else Judgement.model_validate(judgement)
        return deployer.traffic(name, judgement=judged, observe=tell, **given)
    if kind == "promote":
        return deployer.promote(name, observe=tell, **given)
    return deployer.rollback(name, observe=tell)


def _generation(deployer: EmbeddedDeployer, name: str) -> int:
    return next((one.generation for one in deployer.services() if one.name == name), 0)
