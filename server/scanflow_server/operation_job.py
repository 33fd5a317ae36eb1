"""One change of a service, in a process of its own: made once, also where the process is killed in the middle of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scanflow.app.files import load_json
from scanflow.backends.service_change import ServiceChange, Sizing
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord
from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.errors import NotFoundError, ScanflowError, UsageError
from scanflow.problems import problem_of
from scanflow.settings import Settings
from scanflow_server.jobs import Job, Lines

_log = logging.getLogger(__name__)


def operate(job: Job, order: Mapping[str, Any]) -> None:
    """Make the change and write down what came of it."""
    deployer = EmbeddedDeployer(Settings.model_validate(order["settings"]))
    lines = Lines(job.lines)

    def tell(progress: Progress) -> None:
        lines.append(json.dumps({"text": progress.text}))

    again = job.begun is not None
    job.begin({})
    try:
        record = _change(deployer, order, again, tell)
    except ScanflowError as error:
        _log.warning("It cannot be done: %s", error)
        job.end({"result": None, "problem": problem_of(error)[1]})
        return
    job.end({"result": None if record is None else record.model_dump(mode="json"), "problem": None})


def _change(
    deployer: EmbeddedDeployer, order: Mapping[str, Any], again: bool, tell: ServiceObserver
) -> ServiceRecord | None:
    kind, name, given = str(order["kind"]), str(order["service"]), dict(order["request"])
    key = str(order["id"])
    if kind == "delete":
        try:
            deployer.delete(name, observe=tell)
        except NotFoundError:
            if not again:
                raise
        return None
    if kind == "change":
        return deployer.change(name, ServiceChange.model_validate(given), key=key, observe=tell)
    if kind != "deploy":
        raise UsageError(f"An earlier version of scanflow queued this change ({kind}). Request it again.")
    app, source = load_json(json.dumps(given["application"])), given["source"]
    sizing = None if given["sizing"] is None else Sizing.model_validate(given["sizing"])
    return deployer.deploy(
        app,
        name,
        sizing=sizing,
        port=given["port"],
        source=None if source is None else Path(source),
        key=key,
        observe=tell,
    )
