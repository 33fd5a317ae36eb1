"""``python -m scanflow_server.driver FOLDER``: does the job a folder describes, and outlives the server.

A run is driven here, and a service changed, so the user's code is never in the server's own process. Killed at any
instant and started again, it goes on with what it had begun.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.files import load_json
from scanflow.backends.records import Event, RunEnded, RunRecord, Waiting
from scanflow.backends.service_change import Deployment, ServiceChange, Sizing
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.errors import AlreadyRunningError, InvalidError, NotFoundError, ScanflowError, UnavailableError
from scanflow.names import RunName
from scanflow.problems import problem_of
from scanflow.processes.jobs import Job, Lines
from scanflow.settings import Settings

_log = logging.getLogger("scanflow_server.driver")

FINAL = frozenset({"succeeded", "failed", "stopped"})
WAITS_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Pauses between attempts while something outside (the tracker) does not answer; after the last it has failed."""

_LOOK_S = 0.5


def main(folder: Path) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    job = Job(folder)
    order = job.order
    if job.result is not None:
        return 0
    deployer = EmbeddedDeployer(Settings.model_validate(order["settings"]))
    (drive if order["what"] == "run" else operate)(job, order, deployer)
    _log.info("done: %s", order["what"])
    return 0


def drive(job: Job, order: Mapping[str, Any], deployer: EmbeddedDeployer) -> None:
    """Drive a run to its end, or write down why it cannot be."""
    run, action = str(order["run"]), str(order["action"])
    lines = Lines(job.lines)
    begun = any(json.loads(line).get("kind") == "run-started" for line in lines.fresh())

    def tell(event: Event) -> None:
        if not isinstance(event, RunEnded):  # whoever reads the lines tells of the end once it is written down
            lines.append(event.model_dump_json())

    def refused(record: RunRecord, error: Exception) -> None:
        _log.warning("It cannot be driven: %s", error)
        job.end({"record": record.model_dump(mode="json"), "problem": problem_of(error)[1]})

    def given_up(error: Exception) -> None:
        # A run which never began has failed; one that is gone on with stays as it was.
        refused(deployer.show(run) if action == "resume" else deployer.batch.give_up(run, str(error)), error)

    waits = iter(WAITS_S)
    while True:
        record = deployer.show(run)
        if record.state in FINAL and (begun or action != "resume"):
            break  # it ended, and the one that drove it was killed before it could write that down
        try:
            record = deployer.run(RunRequest(_application(deployer, run, order), run=run), observe=tell)
            break
        except AlreadyRunningError as error:
            if action == "resume":
                return refused(record, error)
            time.sleep(_LOOK_S)  # somebody else drives it, and we see how that ends
        except UnavailableError as error:
            pause_s = next(waits, None)
            if pause_s is None:
                return given_up(error)
            _log.warning("%s Trying again in %.0f s.", error, pause_s)
            tell(Waiting(run=RunName(run), what=f"what does not answer: {error}"))
            time.sleep(pause_s)
        except ScanflowError as error:
            return given_up(error)
    job.end({"record": record.model_dump(mode="json"), "problem": None})
    return None


def _application(deployer: EmbeddedDeployer, run: str, order: Mapping[str, Any]) -> Application | None:
    """Return what the run goes on with; None: what its file says now."""
    if order["action"] != "resume":
        return deployer.batch.definition(run).app
    given = order.get("application")
    return None if given is None else _with_kept_parameters(deployer, run, load_json(json.dumps(given)))


def _with_kept_parameters(deployer: EmbeddedDeployer, run: str, app: Application) -> Application:
    """Return the application with the parameters that the run was started with.

    A function's own defaults are not in an application's text, so one that was changed at the start is known only by
    what the run was made of.
    """
    kept = deployer.batch.definition(run).workflow
    try:
        found = app.workflow(kept.name)
    except NotFoundError:
        return app
    nodes = []
    for node in found.nodes:
        before = kept.by_name.get(node.name)
        more = {} if before is None else {k: v for k, v in before.parameters.items() if k not in node.parameters}
        nodes.append(node.replace(parameters={**node.parameters, **more}) if more else node)
    return app.with_workflow(found.replace(nodes=tuple(nodes)))


def operate(job: Job, order: Mapping[str, Any], deployer: EmbeddedDeployer) -> None:
    """Change a service once, and write down what came of it."""
    lines = Lines(job.lines)

    def tell(progress: Progress) -> None:
        lines.append(json.dumps({"text": progress.text}))

    again = job.begin()
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
    name, given, key = str(order["service"]), dict(order["request"]), str(order["id"])
    _check_team(deployer, name, order.get("team"))
    if order["kind"] == "delete":
        try:
            deployer.delete(name, observe=tell)
        except NotFoundError:
            if not again:
                raise
        return None
    if order["kind"] == "change":
        return deployer.change(name, ServiceChange.model_validate(given), key=key, observe=tell)
    app, source = load_json(json.dumps(given["application"])), given["source"]
    sizing = None if given["sizing"] is None else Sizing.model_validate(given["sizing"])
    file = None if source is None else Path(source)
    return deployer.deploy(Deployment(app, name, sizing=sizing, port=given["port"], source=file), key=key, observe=tell)


def _check_team(deployer: EmbeddedDeployer, name: str, team: str | None) -> None:
    """Refuse to touch what has become another team's since the change was requested."""
    if team and any(one.name == name and one.team != team for one in deployer.services()):
        raise InvalidError(f"The name {name!r} of a service is another team's by now. Choose another.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("This is what the server starts. You want: scanflow run")
    sys.exit(main(Path(sys.argv[1]).absolute()))
