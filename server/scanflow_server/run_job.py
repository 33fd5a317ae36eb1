"""One drive of a run, in a process of its own: begun, gone on with after a kill, and written down when it has ended."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from scanflow.app.application import Application
from scanflow.app.files import load_json
from scanflow.backends.records import Event, RunEnded, RunRecord, Waiting
from scanflow.deployer.embedded import EmbeddedDeployer
from scanflow.errors import AlreadyRunningError, NotFoundError, ScanflowError, UnavailableError
from scanflow.names import RunName
from scanflow.problems import problem_of
from scanflow.settings import Settings
from scanflow_server.jobs import Job, Lines

_log = logging.getLogger(__name__)

FINAL = frozenset({"succeeded", "failed", "stopped"})
WAITS_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Pauses between attempts while something outside (the tracker) does not answer; after the last it has failed."""

_LOOK_S = 0.5


def drive(job: Job, order: Mapping[str, Any], *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Drive the run to its end, or write down why it cannot be."""
    run, action = str(order["run"]), str(order["action"])
    deployer = EmbeddedDeployer(Settings.model_validate(order["settings"]))
    lines = Lines(job.lines)
    begun = any(json.loads(line).get("kind") == "run-started" for line in lines.fresh())

    def tell(event: Event) -> None:
        if not isinstance(event, RunEnded):  # whoever reads the lines tells of the end once it is written down
            lines.append(event.model_dump_json())

    waits = iter(WAITS_S)
    while True:
        record = deployer.show(run)
        if record.state in FINAL and (begun or action != "resume"):
            break  # it ended, and the one that drove it was killed before it could write that down
        try:
            record = deployer.resume(run, app=_application(deployer, run, order), observe=tell)
            break
        except AlreadyRunningError as error:
            if action == "resume":
                _refused(job, record, error)
                return
            sleep(_LOOK_S)  # somebody else drives it, and we see how that ends
        except UnavailableError as error:
            pause_s = next(waits, None)
            if pause_s is None:
                _refused(job, _given_up(deployer, record, action, error), error)
                return
            _log.warning("%s Trying again in %.0f s.", error, pause_s)
            tell(Waiting(run=RunName(run), what=f"what does not answer: {error}"))
            sleep(pause_s)
        except ScanflowError as error:
            _refused(job, _given_up(deployer, record, action, error), error)
            return
    job.end({"record": record.model_dump(mode="json"), "problem": None})


def _application(deployer: EmbeddedDeployer, run: str, order: Mapping[str, Any]) -> Application | None:
    """Return what the run goes on with; None: what its file says now."""
    if order["action"] != "resume":
        return deployer.definition(run).app
    given = order.get("application")
    return None if given is None else _with_kept_parameters(deployer, run, load_json(json.dumps(given)))


def _with_kept_parameters(deployer: EmbeddedDeployer, run: str, app: Application) -> Application:
    """Return the application with the parameters that the run was started with.

    A function's own defaults are not in an application's text, so one that was changed at the start is known only by
    what the run was made of.
    """
    kept = deployer.definition(run).workflow
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


def _given_up(deployer: EmbeddedDeployer, record: RunRecord, action: str, error: Exception) -> RunRecord:
    """Note that a run which never began has failed; one that is gone on with stays as it was."""
    return deployer.show(record.name) if action == "resume" else deployer.give_up(record.name, str(error))


def _refused(job: Job, record: RunRecord, error: Exception) -> None:
    _log.warning("It cannot be driven: %s", error)
    job.end({"record": record.model_dump(mode="json"), "problem": problem_of(error)[1]})
