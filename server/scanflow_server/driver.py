"""``python -m scanflow_server.driver FOLDER``: carries out the job described in a folder, and outlives the server.

It drives runs and changes services, so that users' code never runs in the server's process. Killed at any instant and
restarted, it continues.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.application_files import load_json
from scanflow.backends.run_records import FINAL_STATES, Event, RunEnded, RunRecord, Waiting
from scanflow.backends.service_change import Deployment, ServiceChange, Sizing
from scanflow.backends.service_records import Progress, ServiceObserver, ServiceRecord
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.deployer.masked_deployer import list_documents, mask_problem, mask_service
from scanflow.errors import AlreadyRunningError, InvalidError, NotFoundError, ScanflowError, UnavailableError
from scanflow.http.problems import build_problem
from scanflow.names import RunName
from scanflow.processes.background_jobs import Job, Lines
from scanflow.settings import Settings
from scanflow.text.masking import Masker

_log = logging.getLogger("scanflow_server.driver")

WAITS_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Pauses between attempts while something outside (the tracker) does not answer; after the last the job fails."""

_POLL_S = 0.5


def main(folder: Path) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    job = Job(folder)
    order = job.order
    if job.result is not None:
        return 0
    # A job may go on in a home that was moved since it was written.
    home = next((str(parent.parent) for parent in folder.parents if parent.name == "server"), order["settings"]["home"])
    settings = Settings.model_validate({**order["settings"], "home": home})
    deployer = EmbeddedDeployer(settings, models_of=order.get("team"))
    try:
        (drive if order["what"] == "run" else operate)(job, order, deployer)
    except Exception:  # noqa: BLE001  a defect: its traceback is logged without the secrets that it may quote
        _log.error("failed: %s\n%s", order["what"], _mask(deployer, order, traceback.format_exc()))
        return 1
    _log.info("done: %s", order["what"])
    return 0


def _mask(deployer: EmbeddedDeployer, order: Mapping[str, Any], text: str) -> str:
    return _load_masker(deployer, order).mask_text(text)


def _load_masker(deployer: EmbeddedDeployer, order: Mapping[str, Any]) -> Masker:
    """Return the masker of an order's secrets, those of the run's definition included."""
    documents: list[Any] = [order.get("application"), order.get("request")]
    if order["what"] == "run":
        with suppress(ScanflowError):
            documents += list_documents(deployer.batch.definition(str(order["run"])))
    return Masker(*documents)


def drive(job: Job, order: Mapping[str, Any], deployer: EmbeddedDeployer) -> None:
    """Drive a run to its end, or record why that is impossible."""
    run, action = str(order["run"]), str(order["action"])
    lines = Lines(job.lines)
    begun = any(json.loads(line).get("kind") == "run-started" for line in lines.read_new())

    def write_event(event: Event) -> None:
        if not isinstance(event, RunEnded):  # the readers of the lines send it once the result is recorded
            lines.append(event.model_dump_json())

    def fail(record: RunRecord, error: Exception) -> None:
        problem = mask_problem(build_problem(error)[1], _load_masker(deployer, order))
        _log.warning("The run cannot be executed: %s", problem["detail"])
        job.end({"record": record.model_dump(mode="json"), "problem": problem})

    def give_up_run(error: Exception) -> None:
        # A run that never began has failed; a resumed one stays as it was.
        reason = _mask(deployer, order, str(error))
        fail(deployer.show(run) if action == "resume" else deployer.batch.give_up(run, reason), error)

    waits = iter(WAITS_S)
    while True:
        record = deployer.show(run)
        if record.state in FINAL_STATES and (begun or action != "resume"):
            break  # it ended, but its driver was killed before it could record that
        try:
            app = _load_application(deployer, run, order)
            request = RunRequest(app, functions=order.get("functions") or {}, run=run)
            record = deployer.run(request, observe=write_event)
            break
        except AlreadyRunningError as error:
            if action == "resume":
                return fail(record, error)
            time.sleep(_POLL_S)  # another process drives it: wait for its end
        except UnavailableError as error:
            pause_s = next(waits, None)
            if pause_s is None:
                return give_up_run(error)
            reason = _mask(deployer, order, str(error))
            _log.warning("%s Retrying in %.0f s.", reason, pause_s)
            write_event(Waiting(run=RunName(run), what=f"an external system that does not answer: {reason}"))
            time.sleep(pause_s)
        except ScanflowError as error:
            return give_up_run(error)
    job.end({"record": record.model_dump(mode="json"), "problem": None})
    return None


def _load_application(deployer: EmbeddedDeployer, run: str, order: Mapping[str, Any]) -> Application | None:
    """Return the application that a run continues with; None: the one in its file."""
    if order["action"] != "resume":
        return deployer.batch.definition(run).app
    document = order.get("application")
    return None if document is None else _restore_parameters(deployer, run, load_json(json.dumps(document)))


def _restore_parameters(deployer: EmbeddedDeployer, run: str, app: Application) -> Application:
    """Return the application with the parameters that the run was started with.

    A function's defaults are not in an application's text, so a parameter changed at the start is known only from the
    run's definition.
    """
    original = deployer.batch.definition(run).workflow
    try:
        workflow = app.workflow(original.name)
    except NotFoundError:
        return app
    nodes = []
    for node in workflow.nodes:
        before = original.by_name.get(node.name)
        more = {} if before is None else {k: v for k, v in before.parameters.items() if k not in node.parameters}
        nodes.append(node.replace(parameters={**node.parameters, **more}) if more else node)
    return app.with_workflow(workflow.replace(nodes=tuple(nodes)))


def operate(job: Job, order: Mapping[str, Any], deployer: EmbeddedDeployer) -> None:
    """Change a service once, and record the result."""
    lines, masker = Lines(job.lines), _load_masker(deployer, order)

    def write_progress(progress: Progress) -> None:
        lines.append(json.dumps({"text": masker.mask_text(progress.text)}))

    again = job.begin()
    try:
        record = _change_service(deployer, order, again, write_progress)
    except ScanflowError as error:
        problem = mask_problem(build_problem(error)[1], masker)
        _log.warning("The change failed: %s", problem["detail"])
        job.end({"result": None, "problem": problem})
        return
    result = None if record is None else mask_service(record, masker).model_dump(mode="json")
    job.end({"result": result, "problem": None})


def _change_service(
    deployer: EmbeddedDeployer, order: Mapping[str, Any], again: bool, tell: ServiceObserver
) -> ServiceRecord | None:
    name, request, key = str(order["service"]), dict(order["request"]), str(order["id"])
    _check_team(deployer, name, order.get("team"))
    if order["kind"] == "delete":
        try:
            deployer.delete(name, observe=tell)
        except NotFoundError:
            if not again:
                raise
        return None
    if order["kind"] == "change":
        return deployer.change(name, ServiceChange.model_validate(request), key=key, observe=tell)
    app, source = load_json(json.dumps(request["application"])), request["source"]
    sizing = None if request["sizing"] is None else Sizing.model_validate(request["sizing"])
    file = None if source is None else Path(source)
    return deployer.deploy(
        Deployment(app, name, sizing=sizing, port=request["port"], source=file), key=key, observe=tell
    )


def _check_team(deployer: EmbeddedDeployer, name: str, team: str | None) -> None:
    """Refuse to change a service that became another team's since the request."""
    if team and any(service.name == name and service.team != team for service in deployer.services()):
        raise InvalidError(f"Another team uses the service name {name!r} now. Choose another name.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("The server starts this program. Use instead: scanflow run")
    sys.exit(main(Path(sys.argv.pop(1)).absolute()))
