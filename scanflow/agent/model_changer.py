"""A person's promotion or rejection of a model's version, as agents would do it: by the client and by the server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from scanflow.agent.agent_records import JSON, Action, Event
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_records import ServiceObserver, ServiceRecord
from scanflow.backends.service_transitions import explain_rejection
from scanflow.errors import UsageError
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow.knowledge.model_cache import split_model_uri
from scanflow.knowledge.version_tags import (
    ACTION,
    BEFORE,
    BY_HAND,
    CHAMPION,
    MAX_LENGTH,
    OVERRULED,
    PERSON,
    PROMOTED,
    PROMOTION,
    describe_rejection,
    find_rejection,
    find_version_before,
    format_decision_tags,
    format_rejection,
)
from scanflow.text.printable import make_one_line

_MAX_APPROVALS = 1000


class ServiceChanger(Protocol):
    """Lists services and changes them: a deployer, or the server itself."""

    def services(self) -> list[ServiceRecord]: ...

    def change(
        self, name: str, change: ServiceChange, *, observe: ServiceObserver = lambda _: None
    ) -> ServiceRecord: ...


class ActionApprover(Protocol):
    """Agents' actions that wait for a person, and the event log: a server, or a client of one."""

    def approvals(self, *, limit: int) -> Sequence[Action]: ...

    def approve(self, action: str, /, *, reason: str = "") -> Action: ...

    def refuse(self, action: str, /, *, reason: str = "") -> Action: ...

    def tell(self, events: Sequence[Event], /) -> list[Event]: ...


@dataclass(frozen=True, kw_only=True)
class ModelChange:
    """The outcome of a person's promotion or rejection of a version."""

    model: str
    version: int
    done: Literal["promoted", "approved", "rejected"]
    """``approved``: an agent's action, which the agent carries out and watches before it names the champion."""

    services: tuple[str, ...] = ()
    """Services that were changed, or will be by the actions."""

    actions: tuple[str, ...] = ()
    """Agents' actions that were approved or refused."""

    before: int | None = None
    """The version in use before."""


def serves(record: ServiceRecord, model: str) -> dict[str, str]:
    """Return the nodes of a service that serve the model now, and the version of each."""
    current = record.current
    return {node: uri for node, uri in current.models.items() if split_model_uri(uri)[0] == model} if current else {}


def explain_rejected_version(version: ModelVersion) -> str:
    return explain_rejection(version.name, version.version, describe_rejection(version.tags) or "rejected")


class ModelChanger:
    """Promotes and rejects versions for a person.

    A service is changed first, then the registry, then an event is published. An interrupted call is completed by the
    same call again.
    """

    def __init__(
        self, knowledge: KnowledgeBase, deployer: ServiceChanger, control: ActionApprover | None, *, person: str
    ) -> None:
        """``control``: None: there is no server."""
        self._knowledge, self._deployer, self._control, self._person = knowledge, deployer, control, person

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
        """Serve a version and name it the champion. An agent's pending action that does so is approved instead.

        What is in use already stays as it is, with its reason, unless a new one is given.

        Args:
            name: The model's.
            version: Its number.
            why: The reason, recorded with it.
            services: Those to change, of the services of the model. None named: the only one, if there is one.
            alias: The alias of the version in use.
            observe: Called with the services' progress.

        Raises:
            UsageError: the version was rejected, and no reason is given to use it all the same.
        """
        promoted = self._knowledge.get_model(name, version)
        if not why and find_rejection(promoted.tags) is not None:
            raise UsageError(explain_rejected_version(promoted))
        chosen = self._select_services(name, services, f"promote {name} {version}")
        before = self._find_version_in_use(promoted, chosen, alias)
        waiting = {action.intent.target: action for action in self._list_waiting(promoted)}
        approved: list[Action] = []
        for record in chosen:
            if (action := waiting.get(f"service/{record.name}")) is not None and self._control is not None:
                approved.append(self._control.approve(action.id, reason=why))
            else:
                self._change(record, promoted, observe, why)
        change = ModelChange(
            model=name,
            version=version,
            done="approved" if approved else "promoted",
            services=tuple(record.name for record in chosen),
            actions=tuple(action.id for action in approved),
            before=before,
        )
        is_in_use = alias in promoted.aliases and promoted.tags.get(PROMOTION) in {PROMOTED, BY_HAND}
        is_served = all({*serves(record, name).values()} == {promoted.uri} for record in chosen)
        if not approved and (why or not (is_in_use and is_served)):
            self._name_champion(promoted, chosen, before=before, why=why, alias=alias)
        return change

    def find_rejected(self, uris: Iterable[str]) -> ModelVersion | None:
        """Return the first of these versions that was rejected."""
        versions = (self._knowledge.get_model(*split_model_uri(uri)) for uri in uris)
        return next((version for version in versions if find_rejection(version.tags) is not None), None)

    def follow_change(
        self, before: ServiceRecord, after: ServiceRecord, *, why: str, alias: str = CHAMPION
    ) -> tuple[ModelVersion, ...]:
        """Name the versions champions that a person's change of a service put in the place of one; return them.

        Detections, agents and the next deployment go by the alias: they would stay with what was withdrawn. It stays
        where another service still serves the former champion.
        """
        was, now = ({} if record.current is None else record.current.models for record in (before, after))
        replaced = [(was[node], uri) for node, uri in now.items() if was.get(node) not in {None, uri}]
        named = []
        for old, new in replaced:
            name, number = split_model_uri(new)
            if split_model_uri(old)[0] != name:
                continue
            champion, version = (
                self._knowledge.get_model(*split_model_uri(old)),
                self._knowledge.get_model(name, number),
            )
            others = (serves(service, name).values() for service in self._deployer.services())
            if alias in champion.aliases and not any(old in uris for uris in others):
                self._name_champion(version, [after], before=champion.version, why=why, alias=alias)
                named.append(version)
        return tuple(named)

    def _name_champion(
        self, version: ModelVersion, services: Sequence[ServiceRecord], *, before: int | None, why: str, alias: str
    ) -> None:
        tags = {} if before is None else {BEFORE: str(before)}
        tags |= {PROMOTION: BY_HAND, ACTION: "", **format_decision_tags(self._person, why)}
        if (rejection := describe_rejection(version.tags)) is not None:
            tags[OVERRULED] = make_one_line(rejection, MAX_LENGTH)
        self._knowledge.set_model_tags(version.name, version.version, tags)
        self._knowledge.set_model_alias(version.name, alias, version.version)
        self._record("model.promoted", version, services, before=before, why=why)

    def reject(
        self,
        name: str,
        version: int,
        *,
        why: str = "",
        alias: str = CHAMPION,
        observe: ServiceObserver = lambda _: None,
    ) -> ModelChange:
        """Reject a version: agents' pending actions with it are refused, and where it is in use, the previous version
        is served again.

        Raises:
            UsageError: it is in use, and there is no previous version.
        """
        rejected_version = self._knowledge.get_model(name, version)
        of_model = [service for service in self._deployer.services() if serves(service, name)]
        answering = [service for service in of_model if rejected_version.uri in serves(service, name).values()]
        is_champion = alias in rejected_version.aliases
        before = self._get_previous_version(rejected_version) if answering or is_champion else None
        for record in answering:
            assert before is not None
            self._change(record, before, observe, f"version {version} was rejected: {why or 'by hand'}")
        if before is not None and is_champion:
            self._knowledge.set_model_alias(name, alias, before.version)
        refused = self._refuse_actions(rejected_version, why)
        noted = {ACTION: refused[0]} if refused else {}
        noted |= format_decision_tags(self._person, why)
        self._knowledge.set_model_tags(name, version, {PROMOTION: format_rejection(why or "by hand"), **noted})
        self._record("model.rejected", rejected_version, of_model, why=why or "by hand")
        return ModelChange(
            model=name,
            version=version,
            done="rejected",
            services=tuple(service.name for service in answering),
            actions=refused,
            before=None if before is None else before.version,
        )

    def _find_version_in_use(
        self, candidate: ModelVersion, services: Sequence[ServiceRecord], alias: str
    ) -> int | None:
        """Return the other version in use: the one that services serve, else the champion."""
        uris = {uri for service in services for uri in serves(service, candidate.name).values()} - {candidate.uri}
        versions = self._knowledge.list_model_versions(candidate.name)
        served = [version.version for version in versions if version.uri in uris]
        champions = [
            version.version for version in versions if alias in version.aliases and version.version != candidate.version
        ]
        return next(iter([*served, *champions]), None)

    def _get_previous_version(self, version: ModelVersion) -> ModelVersion:
        number = find_version_before(version.tags)
        versions = self._knowledge.list_model_versions(version.name)
        previous = next(
            (other for other in versions if other.version == number and find_rejection(other.tags) is None), None
        )
        if previous is None:
            raise UsageError(
                f"Version {version.version} of {version.name!r} is in use, and there is no accepted previous version. "
                f"Promote another version first: scanflow models promote {version.name} VERSION"
            )
        return previous

    def _select_services(self, name: str, services: Sequence[str], command: str) -> list[ServiceRecord]:
        """Return the services to change to another version of the model."""
        answering = {service.name: service for service in self._deployer.services() if serves(service, name)}
        if unknown := [service for service in services if service not in answering]:
            names = ", ".join(answering) or "none"
            raise UsageError(
                f"The service {unknown[0]!r} does not serve the model {name!r}. These services do: {names}."
            )
        if not services and len(answering) > 1:
            first, *_ = answering
            raise UsageError(
                f"{', '.join(answering)} serve the model {name!r}. Name one: scanflow models {command} "
                f"--service {first}"
            )
        return [service for service in answering.values() if not services or service.name in services]

    def _change(self, record: ServiceRecord, version: ModelVersion, observe: ServiceObserver, reason: str) -> None:
        reason = make_one_line(reason, MAX_LENGTH)
        for node, uri in serves(record, version.name).items():
            if uri != version.uri:
                change = ServiceChange(model=version.uri, node=node, reason=reason or None)
                self._deployer.change(record.name, change, observe=observe)

    def _list_waiting(self, version: ModelVersion) -> list[Action]:
        """Return the agents' pending actions that would serve a version."""
        if self._control is None:
            return []
        actions = self._control.approvals(limit=_MAX_APPROVALS)
        return [action for action in actions if action.intent.arguments.get("model") == version.uri]

    def _refuse_actions(self, version: ModelVersion, why: str) -> tuple[str, ...]:
        if self._control is None:
            return ()
        return tuple(self._control.refuse(action.id, reason=why).id for action in self._list_waiting(version))

    def _record(
        self, type: str, version: ModelVersion, services: Sequence[ServiceRecord], **data: int | str | None
    ) -> None:
        """Publish a person's decision, and note with the version the name by which the server knows that person."""
        if self._control is not None:
            app = services[0].app if services else version.tags.get("scanflow.app", "")
            about: dict[str, JSON] = {"agent": "person", "version": version.version, **data}
            event = Event(at=time.time(), type=type, app=app, subject=f"model/{version.name}", data=about)
            by = next((told.data.get("by") for told in self._control.tell([event]) or ()), None)
            if isinstance(by, str):
                self._knowledge.set_model_tags(version.name, version.version, {PERSON: by})
