"""The controller that sends events that need people to webhooks: at least once, in order, and independently of the
failures of other webhooks.

The position of a webhook is stored after its response: a repeated message has the same ``webhook-id``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scanflow.agent.agent_records import Action, Event
from scanflow.app.webhook import Webhook, check_url
from scanflow.errors import InvalidError, ScanflowError, UnavailableError
from scanflow.instance_messages import read_token
from scanflow.transport.webhook_sender import post
from scanflow_server.controller_loop import IDLE_S, ErrorIsolation
from scanflow_server.notices import TYPES, build_body, is_news
from scanflow_server.response_masking import mask_action
from scanflow_server.server_context import ServerContext
from scanflow_server.store import application_store, event_store, intent_store, webhook_positions
from scanflow_server.store.application_store import ApplicationRow
from scanflow_server.store.secret_store import cache_maskers

_log = logging.getLogger(__name__)

PERIOD_S = 1.0
FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 300.0
GIVE_UP_S = 86_400.0
"""How long a message is retried, in seconds."""

FAILED = "notification.failed"
"""The event of a message that a webhook did not receive."""

_MAX_BATCH = 500


@dataclass(slots=True)
class _Target:
    app: str
    team: str
    webhook: Webhook
    folder: Path
    """The folder of relative ``file:`` addresses."""

    key: str
    since: float
    """When the webhook was configured."""

    seen: int = -1
    """The number of the last event handled; -1: not loaded yet."""

    failures: int = 0
    due: float = 0.0

    @property
    def types(self) -> list[str]:
        return [type for news in self.webhook.on for type in TYPES[news]]


class NotificationsController:
    def __init__(
        self,
        context: ServerContext,
        *,
        clock: Callable[[], float] = time.monotonic,
        send: Callable[..., None] = post,
        patience_s: float = 1.0,
    ) -> None:
        """``clock`` is for the pauses after failures; ``send``: see :func:`scanflow.transport.webhook_sender.post`;
        ``patience_s``: how long each webhook, in a thread of its own, keeps the next one waiting at most."""
        self._context, self._clock, self._send, self._patience_s = context, clock, send, patience_s
        self._sending: dict[str, threading.Thread] = {}
        self._isolation = ErrorIsolation()
        self._targets: dict[tuple[str, str], tuple[int, list[_Target]]] = {}

    def tick(self) -> float:
        with self._context.store.read() as connection:
            revisions = application_store.load_revisions(connection)
            changed = [key for key, revision in revisions.items() if self._targets.get(key, (0,))[0] != revision]
            rows = [application_store.find(connection, *key) for key in changed]
            newest = event_store.get_newest_id(connection)
        self._targets = {key: entry for key, entry in self._targets.items() if key in revisions}
        for row in rows:
            if row is not None:
                self._targets[row.name, row.team] = row.revision, build_targets(row)
        all_targets = [target for _, targets in self._targets.values() for target in targets]
        self._sending = {key: thread for key, thread in self._sending.items() if thread.is_alive()}
        for target in sorted(all_targets, key=lambda target: target.failures > 0):  # those that answer first
            due = target.seen < newest and self._clock() >= target.due
            if due and target.key not in self._sending and not self._context.shutdown.is_set():
                self._start(target, newest).join(self._patience_s)
        return PERIOD_S if all_targets else IDLE_S

    def _start(self, target: _Target, newest: int) -> threading.Thread:
        """Notify a webhook in a thread: one whose receiver does not answer delays no other."""

        def notify() -> None:
            with self._isolation.isolate(f"The webhook of {target.app!r}"):
                self._notify(target, newest)

        thread = threading.Thread(target=notify, name=f"webhook-{target.app}", daemon=True)
        self._sending[target.key] = thread
        thread.start()
        return thread

    def _notify(self, target: _Target, newest: int) -> None:
        if target.seen < 0:
            with self._context.store.write() as connection:
                position = webhook_positions.find_position(connection, target.key)
                if position is None:  # events from before the webhook was configured are not sent
                    position = event_store.get_newest_id_before(connection, target.since)
                    webhook_positions.put_position(connection, target.key, position)
                target.seen = position
        with self._context.store.read() as connection:
            batch = event_store.list_after(
                connection, target.seen, type=target.types, app=target.app, team=target.team, limit=_MAX_BATCH
            )
            actions = {event.id: _find_action(connection, event) for event in batch}
        for event in filter(is_news, batch):
            if self._context.shutdown.is_set():
                return
            try:
                self._post(target, event, actions[event.id])
            except InvalidError as error:
                self._record_failure(target, event, error, "the receiver refused it; it is not sent again")
            except ScanflowError as error:
                target.failures += 1
                pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(target.failures - 1, 10))
                target.due = self._clock() + pause_s
                if self._context.clock() - event.at < GIVE_UP_S:
                    if target.failures == 1:
                        self._record_failure(target, event, error, "it will be retried later")
                    return
                self._record_failure(target, event, error, "it is a day old and is not sent any more")
            else:
                target.failures = 0
            with self._context.store.write() as connection:
                webhook_positions.put_position(connection, target.key, event.id)
            target.seen = event.id
        target.seen = batch[-1].id if len(batch) == _MAX_BATCH else max(newest, target.seen)

    def _post(self, target: _Target, event: Event, action: Action | None) -> None:
        try:
            url = target.webhook.url
            url = check_url(url if url.startswith(("http:", "https:")) else read_token(url, target.folder) or "")
            secret = read_token(target.webhook.secret or "", target.folder)
        except InvalidError as error:  # the operator can fix it, and then it is sent
            raise UnavailableError(str(error)) from error
        body = build_body(event, action, url=self._context.url)
        at = int(self._context.clock())
        self._send(url, body, id=f"scanflow-{event.app}-{event.id}", at=at, secret=secret)

    def _record_failure(self, target: _Target, event: Event, error: Exception, then: str) -> None:
        _log.warning("A webhook of %r did not receive %s: %s; %s", target.app, event.type, error, then)
        with self._context.store.write() as connection:
            data: dict[str, Any] = {"event": event.id, "type": event.type, "error": str(error), "then": then}
            at, subject = self._context.clock(), f"application/{target.app}"
            event_store.record(connection, FAILED, subject, at=at, app=target.app, team=target.team, data=data)


def build_targets(row: ApplicationRow) -> list[_Target]:
    """Return the webhooks of an application; each has a key that stays the same as long as the webhook does."""
    targets = []
    for document in row.document.get("notify") or ():
        webhook = Webhook.model_validate(document)
        mark = json.dumps([webhook.url, sorted(webhook.on)])
        key = f"{row.name}/{row.team}/{hashlib.sha256(mark.encode()).hexdigest()[:32]}"
        folder = Path(str(row.document.get("app_dir", ".")))
        targets.append(_Target(row.name, row.team, webhook, folder, key, row.updated))
    return targets


def _find_action(connection: Any, event: Event) -> Action | None:
    id = event.data.get("id") or event.data.get("action")
    stored = intent_store.find(connection, id) if isinstance(id, str) else None
    return None if stored is None else mask_action(stored.action, cache_maskers(connection))[0]
