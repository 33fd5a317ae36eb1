"""Models, what became of their versions, and a person's word on them: as the agents would do it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from scanflow.agent.records import JSON, Action, Event
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_records import ServiceObserver, ServiceRecord
from scanflow.errors import UsageError
from scanflow.knowledge import open_knowledge
from scanflow.knowledge.mlflow.served import served_url
from scanflow.knowledge.port import KnowledgeBase
from scanflow.knowledge.records import ModelVersion
from scanflow.knowledge.step_environment import tracker_place
from scanflow.knowledge.version_tags import (
    ACTION,
    BEFORE,
    BY_HAND,
    CHAMPION,
    PROMOTION,
    rejected,
    rejection,
    version_before,
)
from scanflow.reports.model_history import TYPES, histories, serves
from scanflow.settings import Settings
from scanflow_client.formatting.models import VersionList

if TYPE_CHECKING:
    from scanflow.deployer import Deployer
    from scanflow_client.control_client import ControlClient

_WAITING = 1000  # of the actions that wait for a person


def knowledge_of(settings: Settings, control: ControlClient | None) -> KnowledgeBase:
    """Return the knowledge base that a server's agents use, where it says its address; else that of the settings."""
    tracker = {} if control is None else control.status().get("tracker") or {}
    url = str(tracker.get("url") or "")
    home = settings.home.expanduser()
    if url.startswith("http") and tracker.get("ready") and url != served_url(tracker_place(home, settings.tracker_uri)):
        return open_knowledge(home, url)
    return open_knowledge(home, settings.tracker_uri, served=True)


@dataclass(frozen=True, kw_only=True)
class ModelChange:
    """What a person's word on a version did."""

    model: str
    version: int
    done: Literal["promoted", "approved", "rejected"]
    """``approved``: an agent's action, which it carries out, watches, and then names the version the champion."""

    services: tuple[str, ...] = ()
    """That were changed, or will be by the actions."""

    actions: tuple[str, ...] = ()
    """Of agents, that were approved or refused by it."""

    before: int | None = None
    """The version that was in use before."""


class ModelClient:
    """The registry's versions beside the services that answer with them, and the events of the server, if there is one.

    A service is changed first, by a person's command as any other; then the registry says so, and then it is told as
    an event. What was cut off in between is completed by the same call.
    """

    def __init__(self, knowledge: KnowledgeBase, deployer: Deployer, control: ControlClient | None) -> None:
        self._knowledge, self._deployer, self._control = knowledge, deployer, control

    def histories(self, name: str | None = None, *, alias: str = CHAMPION) -> VersionList:
        """Return what became of the versions of a model, or of all models: the newest first."""
        names = self._knowledge.list_models() if name is None else [name]
        found = [self._knowledge.list_model_versions(one) for one in names]
        events = [] if self._control is None else self._control.events_so_far(type=TYPES)
        services = self._deployer.services()
        return VersionList(one for versions in found for one in histories(versions, events, services, alias=alias))

    def promote(
        self,
        name: str,
        version: int,
        *,
        why: str = "",
        services: Sequence[str] = (),
        alias: str = CHAMPION,
        observe: ServiceObserver = lambda _: None,
    ) -> ModelChange:
        """Have services answer with a version, and name it the champion. An agent's action that waits for just that is
        approved instead.

        Args:
            name: The model's.
            version: Its number.
            why: It is kept with it.
            services: Which of those that answer with the model. None named: the only one; or none is changed, where
                none does.
            alias: What names the version in use.
            observe: Is told of the services' progress.
        """
        wanted = self._knowledge.get_model(name, version)
        chosen = self._chosen(name, services, f"promote {name} {version}")
        before = self._in_use(wanted, chosen, alias)
        waiting = {one.intent.target: one for one in self._waiting(wanted)}
        approved: list[Action] = []
        for record in chosen:
            if (action := waiting.get(f"service/{record.name}")) is not None and self._control is not None:
                approved.append(self._control.approve(action.id, reason=why))
            else:
                self._change(record, wanted, observe)
        made = ModelChange(
            model=name,
            version=version,
            done="approved" if approved else "promoted",
            services=tuple(one.name for one in chosen),
            actions=tuple(one.id for one in approved),
            before=before,
        )
        if approved:
            return made
        kept = {} if before is None else {BEFORE: str(before)}
        self._knowledge.set_model_tags(name, version, {PROMOTION: BY_HAND, **kept})
        self._knowledge.set_model_alias(name, alias, version)
        self._tell("model.promoted", wanted, chosen, before=before, why=why)
        return made

    def reject(
        self,
        name: str,
        version: int,
        *,
        why: str = "",
        alias: str = CHAMPION,
        observe: ServiceObserver = lambda _: None,
    ) -> ModelChange:
        """Say that a version is not to be used: what agents want with it is refused, and where it is in use, the one
        from before takes over again.

        UsageError: it is in use, and there is none from before.
        """
        unwanted = self._knowledge.get_model(name, version)
        of_model = [one for one in self._deployer.services() if serves(one, name)]
        answering = [one for one in of_model if unwanted.uri in serves(one, name).values()]
        is_champion = alias in unwanted.aliases
        before = self._before(unwanted) if answering or is_champion else None
        for record in answering:
            assert before is not None
            self._change(record, before, observe)
        if before is not None and is_champion:
            self._knowledge.set_model_alias(name, alias, before.version)
        refused = self._refused(unwanted, why)
        noted = {ACTION: refused[0]} if refused else {}
        self._knowledge.set_model_tags(name, version, {PROMOTION: rejection(why or "by hand"), **noted})
        self._tell("model.rejected", unwanted, of_model, why=why or "by hand")
        return ModelChange(
            model=name,
            version=version,
            done="rejected",
            services=tuple(one.name for one in answering),
            actions=refused,
            before=None if before is None else before.version,
        )

    def _in_use(self, wanted: ModelVersion, services: Sequence[ServiceRecord], alias: str) -> int | None:
        """Return the version in use that is not the one wanted: that services answer with, else the champion."""
        served = [uri for one in services for uri in serves(one, wanted.name).values() if uri != wanted.uri]
        versions = self._knowledge.list_model_versions(wanted.name)
        used = [one.version for one in versions if one.uri in served]
        champions = [one.version for one in versions if alias in one.aliases and one.version != wanted.version]
        return next(iter([*used, *champions]), None)

    def _before(self, version: ModelVersion) -> ModelVersion:
        number = version_before(version.tags)
        versions = self._knowledge.list_model_versions(version.name)
        found = next((one for one in versions if one.version == number and rejected(one.tags) is None), None)
        if found is None:
            raise UsageError(
                f"Version {version.version} of {version.name!r} is in use, and none from before is known that was not "
                f"rejected. Put another to use first: scanflow models promote {version.name} VERSION"
            )
        return found

    def _chosen(self, name: str, services: Sequence[str], command: str) -> list[ServiceRecord]:
        """Return the services that are to answer with another version of the model."""
        answering = {one.name: one for one in self._deployer.services() if serves(one, name)}
        if unknown := [one for one in services if one not in answering]:
            known = ", ".join(answering) or "none"
            raise UsageError(
                f"The service {unknown[0]!r} does not answer with the model {name!r}. Those that do: {known}."
            )
        if not services and len(answering) > 1:
            first, *_ = answering
            raise UsageError(
                f"{', '.join(answering)} answer with the model {name!r}. Say which: scanflow models {command} "
                f"--service {first}"
            )
        return [one for one in answering.values() if not services or one.name in services]

    def _change(self, record: ServiceRecord, version: ModelVersion, observe: ServiceObserver) -> None:
        for node, uri in serves(record, version.name).items():
            if uri != version.uri:
                self._deployer.change(record.name, ServiceChange(model=version.uri, node=node), observe=observe)

    def _waiting(self, version: ModelVersion) -> list[Action]:
        """Return the agents' actions that wait for a person and would have a service answer with a version."""
        if self._control is None:
            return []
        found = self._control.approvals(limit=_WAITING)
        return [one for one in found if one.intent.arguments.get("model") == version.uri]

    def _refused(self, version: ModelVersion, why: str) -> tuple[str, ...]:
        if self._control is None:
            return ()
        return tuple(self._control.refuse(one.id, reason=why).id for one in self._waiting(version))

    def _tell(
        self, type: str, version: ModelVersion, services: Sequence[ServiceRecord], **data: int | str | None
    ) -> None:
        if self._control is not None:
            app = services[0].app if services else version.tags.get("scanflow.app", "")
            about: dict[str, JSON] = {"agent": "person", "version": version.version, **data}
            event = Event(at=time.time(), type=type, app=app, subject=f"model/{version.name}", data=about)
            self._control.tell([event])
