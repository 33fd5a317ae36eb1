"""The history of models' versions, and their promotion and rejection by a person, as agents would do it."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from scanflow.agent.model_changer import ModelChange, ModelChanger, explain_rejected_version
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_records import ServiceObserver, ServiceRecord
from scanflow.deployer.remote_home import build_mlflow_url, find_mlflow_url
from scanflow.errors import ScanflowError, UnavailableError, UsageError
from scanflow.knowledge import open_knowledge
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow.knowledge.version_tags import CHAMPION
from scanflow.reports.model_history import TYPES, VersionHistory, build_histories
from scanflow.settings import Settings
from scanflow_client.formatting.model_text import suggest_versions
from scanflow_client.listing import Listing

if TYPE_CHECKING:
    from scanflow.deployer import Deployer
    from scanflow_client.control_client import ControlClient


def change_version(
    deployer: Deployer,
    name: str,
    change: ServiceChange,
    open_models: Callable[[], ModelClient],
    *,
    observe: ServiceObserver = lambda _: None,
) -> tuple[ServiceRecord, tuple[ModelVersion, ...]]:
    """Promote or roll back a service for a person; return it, and the versions that became champions with it.

    Raises:
        UsageError: the version was rejected.
        UnavailableError: the service is changed, and the registry could not be.
    """
    before = deployer.service(name)
    if chosen := _list_chosen(before, change):
        rejected = None
        with suppress(UsageError, UnavailableError):  # a rollback does not wait for a registry that cannot be read
            rejected = open_models().find_rejected(chosen)
        if rejected is not None:
            raise UsageError(explain_rejected_version(rejected))
    record = deployer.change(name, change, observe=observe)
    now = record.current.models if record.current is not None else {}
    if not now or before.current is None or now == before.current.models:
        return record, ()
    why = f"scanflow {'rollback' if change.rollback else 'promote'} {name}"
    try:
        return record, open_models().follow_change(before, record, why=why)
    except UsageError:
        return record, ()  # a model that is in no registry any more has no alias either
    except ScanflowError as error:
        raise UnavailableError(
            f"{name} serves {', '.join(now.values())} now, but the registry still names the version before it: {error}"
        ) from error


def _list_chosen(record: ServiceRecord, change: ServiceChange) -> list[str]:
    """Return the versions that a change would put in the place of those that the service serves."""
    canaries = [uri for revision in record.revisions[1:] for uri in revision.models.values()]
    by_change = [change.model] if change.model is not None and not change.is_canary else []
    chosen = list(record.previous_models.values()) if change.rollback else canaries if change.promote else by_change
    served = {} if record.current is None else record.current.models
    return [uri for uri in chosen if uri not in served.values()]


def open_server_knowledge(settings: Settings, control: ControlClient | None) -> KnowledgeBase:
    """Open the knowledge base of a server's agents, if the server names its address; else that of the settings."""
    home = settings.home.expanduser()
    tracker = {} if control is None else control.status().get("tracker") or {}
    if control is not None and tracker.get("ready"):
        own, url = build_mlflow_url(control.server.url), str(tracker.get("url") or "")
        if tracker.get("proxied") and own != find_mlflow_url(home):
            return open_knowledge(home, own, token=control.server.token)
        if not tracker.get("proxied") and url.startswith("http"):
            return open_knowledge(home, url)
    return open_knowledge(home, settings.tracker_uri, served=True)


def format_model_change(change: ModelChange) -> list[str]:
    """Return what was promoted, approved or rejected, and the next command."""
    version = f"version {change.version} of {change.model}"
    if change.done == "rejected":
        after = f" Version {change.before} is in use again." if change.before is not None else ""
        refused = f" Refused: {', '.join(change.actions)}." if change.actions else ""
        advice = f"Undo: scanflow models promote {change.model} {change.version} --why TEXT"
        return [f"Rejected: {version}.{after}{refused}", advice]
    services = ", ".join(change.services)
    if change.done == "approved":
        next_steps = f"{services} will serve {version}, which an agent watches before it names it the champion."
        return [f"Approved: {', '.join(change.actions)}. {next_steps}", f"See: scanflow why {change.actions[0]}"]
    services_text = f", served by {services}" if services else "; no service serves the model"
    advice = f"Undo: scanflow models reject {change.model} {change.version}"
    return [
        f"In use: {version}{services_text}.",
        advice if change.before is not None else suggest_versions(change.model),
    ]


class ModelClient(ModelChanger):
    """Client of the registry's versions, their services, and the server's events, if there is a server."""

    def __init__(self, knowledge: KnowledgeBase, deployer: Deployer, control: ControlClient | None) -> None:
        super().__init__(knowledge, deployer, control, person=getpass.getuser())
        self._server = control

    def list_histories(self, name: str | None = None, *, alias: str = CHAMPION) -> Listing[VersionHistory]:
        """Return the history of the versions of a model, or of all models, the newest first."""
        knowledge = self._knowledge
        models = knowledge.list_versions_by_model() if name is None else {name: knowledge.list_model_versions(name)}
        events = [] if self._server is None else self._server.events_so_far(type=TYPES)
        services = self._deployer.services()
        histories = (
            history
            for versions in models.values()
            for history in build_histories(versions, events, services, alias=alias)
        )
        return Listing(histories, "model_text:format_models" if name is None else "model_text:format_versions")
