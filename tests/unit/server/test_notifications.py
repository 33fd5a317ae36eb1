"""Webhooks: what is told to whom, once and again, by a server that is restarted and receivers that are not there."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from scanflow.agent.agent_records import Event, Sample
from scanflow.drift.promotion import format_decision
from scanflow.errors import InvalidError, UnavailableError
from scanflow.transport import webhook_sender
from scanflow_server.control.notifications import GIVE_UP_S, NotificationsController, build_targets
from scanflow_server.server_context import ServerContext
from scanflow_server.store import application_store, event_store, intent_store, webhook_positions
from tests.unit.server.answering import answering
from tests.unit.server.server_rows import make_action_row
from tests.waiting import PATIENCE_S, wait_until

NOW = 1_800_000_000.0
EVIDENCE: dict[str, Any] = {
    "verdict": "promote", "reason": "better", "version": 3, "champion": 1, "drifted": ["latitude"], "run": "tall-fox",
    "slices": [{
        "name": "current", "n": 59, "champion_right": 42, "challenger_right": 55,
        "gain": 0.22, "low": 0.16, "high": 0.28,
    }],
}  # fmt: skip


@dataclass
class Receiver:
    """Answers as it is told to, and keeps what came."""

    url: str
    answers: list[int] = field(default_factory=list)
    came: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [json.loads(body)["text"] for _, body in self.came]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.came.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
            self.send_header("location", "/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        receiver.url = f"http://127.0.0.1:{server.server_port}/services/T0/secret-path"
        yield receiver
        server.shutdown()
        thread.join(PATIENCE_S)


@dataclass
class Sent:
    """In the place of HTTP: what was posted, and what it raises."""

    raises: list[Exception | None] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def __call__(self, url: str, body: bytes, *, id: str, at: int, secret: str | None) -> None:
        error = self.raises.pop(0) if self.raises else None
        self.ids.append(id)
        if error is not None:
            raise error
        self.bodies.append({"url": url, "at": at, "secret": secret, **json.loads(body)})

    @property
    def texts(self) -> list[str]:
        return [body["text"] for body in self.bodies]


def wants(context: ServerContext, *webhooks: dict[str, Any], at: float = NOW) -> None:
    document = {"name": "mnist", "notify": webhooks, "app_dir": str(context.settings.home)}
    with context.store.write() as connection:
        application_store.put(connection, name="mnist", team="data", document=document, source=None, at=at)


def happens(
    context: ServerContext, type: str, subject: str = "run/tall-fox", app: str = "mnist", at: float = NOW, **data: Any
) -> Event:
    with context.store.write() as connection:
        return event_store.append(connection, [Event(at=at, type=type, app=app, subject=subject, data=data)])[0]


def failures(context: ServerContext) -> list[str]:
    with context.store.read() as connection:
        return [str(event.data["then"]) for event in event_store.list_after(connection, 0, type="notification.failed")]


@pytest.fixture
def notifying(context: ServerContext) -> Callable[..., tuple[NotificationsController, Sent, list[float]]]:
    context.url = "http://127.0.0.1:46666"

    def make(*raises: Exception | None) -> tuple[NotificationsController, Sent, list[float]]:
        sent, clock = Sent(list(raises)), [0.0]
        return NotificationsController(context, clock=lambda: clock[0], send=sent, patience_s=PATIENCE_S), sent, clock

    return make


def test_what_needs_people_is_reported_in_one_line_and_all_else_is_not(context: ServerContext, notifying: Any) -> None:
    happens(context, "run.failed", at=NOW - 1, workflow="training", error="before anybody asked")
    wants(context, {"url": "https://hooks.example/1"})
    happens(context, "run.failed", "run/first", workflow="training", error="at once")
    controller, sent, _ = notifying()
    controller.tick()
    assert sent.texts == ["[mnist] The run first of training failed: at once. See: scanflow show first"]
    sent.bodies.clear()
    sample = Sample(id="s", agent="executor", sensor="x", at=NOW, cause="c", value={"evidence": EVIDENCE})
    with context.store.write() as connection:
        waiting = make_action_row("a1", "pending", "approve", agent="executor", sample=sample)
        intent_store.add(connection, waiting)
    asked: dict[str, Any] = {
        "agent": "executor",
        "primitive": "upgrade_workflow",
        "reason": "It needs approval.",
        "id": "a1",
    }
    happens(context, "intent", "service/serve", verdict="act", **asked)
    happens(context, "intent", "service/serve", verdict="approve", **asked)
    happens(context, "run.succeeded")
    happens(context, "run.failed", app="other", workflow="w", error="not ours")
    happens(context, "run.failed", workflow="training", error="<!channel> & co.")
    columns = [{"name": f"c{number}"} for number in range(7)]
    happens(context, "drift.found", "workflow/detector", run="tall-fox", picked=100, columns=columns)
    happens(context, "model.promoted", "model/digits", version=3, before=1, action="a1")
    happens(context, "model.rejected", "model/digits", version=4, why="slower")
    happens(context, "action.reverted", "service/serve", primitive="upgrade_workflow", id="a1")
    controller.tick()
    controller.tick()
    approval, failed, drift, promoted, rejected, reverted = sent.texts
    assert approval.startswith(
        "[mnist] executor requests upgrade_workflow on service/serve, which needs approval. "
        f"{format_decision(EVIDENCE)}"
    )
    assert (
        failed == "[mnist] The run tall-fox of training failed: &lt;!channel&gt; &amp; co. See: scanflow show tall-fox"
    )
    assert drift == (
        "[mnist] Drift in `c0`, `c1`, `c2`, `c3`, `c4` and 2 more (run tall-fox); 100 samples are waiting for labels: "
        "http://127.0.0.1:46666/labels"
    )
    assert promoted.startswith("[mnist] Version 3 of digits is in use, instead of version 1. Replace version 1")
    assert rejected == "[mnist] Version 4 of digits is rejected: slower"
    assert reverted.startswith("[mnist] upgrade_workflow on service/serve was reverted. See: scanflow why a1")
    assert sent.bodies[0]["evidence"] == EVIDENCE
    assert sent.bodies[1]["event"]["data"]["error"] == "<!channel> & co.", "only the line is for a chat"


def test_a_webhook_is_notified_of_what_it_asks_for(context: ServerContext, notifying: Any) -> None:
    wants(context, {"url": "https://a.example", "on": ["drift"]}, {"url": "https://b.example", "on": ["run_failed"]})
    controller, sent, _ = notifying()
    controller.tick()
    happens(context, "run.failed")
    happens(context, "drift.found")
    controller.tick()
    assert {body["url"]: body["event"]["type"] for body in sent.bodies} == {
        "https://a.example": "drift.found",
        "https://b.example": "run.failed",
    }
    wants(context, {"url": "https://c.example"}, at=NOW + 1)
    controller.tick()
    happens(context, "run.failed", at=NOW + 1)
    controller.tick()
    assert [body["url"] for body in sent.bodies[2:]] == ["https://c.example"], "as the application says now"


def test_what_happened_while_nobody_answered_or_the_server_was_down_is_reported_once_in_order(
    context: ServerContext, notifying: Any
) -> None:
    wants(context, {"url": "https://a.example"})
    controller, sent, clock = notifying(None, UnavailableError("down"), UnavailableError("down"))
    controller.tick()
    numbers = [happens(context, "run.failed", f"run/r{number}").id for number in range(3)]
    for seconds in (0.0, 1.0, 5.0, 14.0, 14.9):
        clock[0] = seconds
        controller.tick()
    assert sent.ids == [f"scanflow-mnist-{numbers[at]}" for at in (0, 1, 1)], "after 5 s, and then after 10 s"
    assert failures(context) == ["it will be retried later"]

    controller, sent, _ = notifying()
    controller.tick()
    controller.tick()
    assert sent.ids == [f"scanflow-mnist-{number}" for number in numbers[1:]]
    controller, sent, _ = notifying()
    controller.tick()
    assert sent.ids == []


def test_what_is_refused_or_a_day_old_keeps_nothing_else_back(context: ServerContext, notifying: Any) -> None:
    wants(context, {"url": "https://a.example"}, {"url": "https://b.example"})
    controller, sent, clock = notifying(InvalidError("refused with 404"))
    controller.tick()
    happens(context, "run.failed", "run/r1")
    happens(context, "run.failed", "run/r2")
    controller.tick()
    assert [(body["url"][8], body["event"]["subject"]) for body in sent.bodies] == [
        ("a", "run/r2"), ("b", "run/r1"), ("b", "run/r2"),
    ]  # fmt: skip
    assert failures(context) == ["the receiver refused it; it is not sent again"]

    happens(context, "run.failed", "run/r3")
    sent.raises = [UnavailableError("down"), None, UnavailableError("down"), None]
    controller.tick()
    context.clock = lambda: NOW + GIVE_UP_S
    clock[0] = 3600.0
    controller.tick()
    assert failures(context)[1:] == ["it will be retried later", "it is a day old and is not sent any more"]


def test_a_secret_that_is_not_there_is_waited_for_and_never_shown(
    context: ServerContext, notifying: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wants(context, {"url": "env:HOOK_URL", "secret": "file:hook.secret"})
    controller, sent, clock = notifying()
    controller.tick()
    happens(context, "run.failed")
    controller.tick()
    monkeypatch.setenv("HOOK_URL", "ftp://hidden.example/T0/xyz")
    clock[0] = 10.0
    controller.tick()
    monkeypatch.setenv("HOOK_URL", "https://hooks.example/T0/xyz")
    clock[0] = 100.0
    controller.tick()
    assert sent.bodies == []
    (context.settings.home / "hook.secret").write_text("s3cret\n")
    clock[0] = 1000.0
    controller.tick()
    assert [(body["url"], body["secret"]) for body in sent.bodies] == [("https://hooks.example/T0/xyz", "s3cret")]
    with context.store.read() as connection:
        text = json.dumps([event.model_dump() for event in event_store.list_after(connection, 0)])
    for hidden in ("hidden.example", "xyz", "s3cret"):
        assert hidden not in text + caplog.text


def test_a_message_is_signed_as_standard_webhooks_say_and_tried_again(
    context: ServerContext, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = b"0123456789abcdef"
    monkeypatch.setenv("HOOK_URL", receiver.url)
    monkeypatch.setenv("HOOK_SECRET", f"whsec_{base64.b64encode(key).decode()}")
    wants(context, {"url": "env:HOOK_URL", "secret": "env:HOOK_SECRET"})
    receiver.answers = [503, 429]
    controller = NotificationsController(context, patience_s=PATIENCE_S)
    controller.tick()
    event = happens(context, "run.failed", workflow="training", error="no such file")
    controller.tick()
    assert len(receiver.came) == 3
    headers, body = receiver.came[-1]
    assert headers["webhook-id"] == f"scanflow-mnist-{event.id}"
    assert headers["webhook-timestamp"] == str(int(NOW))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{mac}"
    assert headers["content-type"] == "application/json"
    assert {message[0]["webhook-signature"] for message in receiver.came} == {f"v1,{mac}"}, "the same message each time"


@pytest.mark.parametrize("status", [302, 400, 404, 410])
def test_what_a_receiver_refuses_is_sent_once_and_nowhere_else(
    context: ServerContext, receiver: Receiver, status: int
) -> None:
    wants(context, {"url": receiver.url})
    receiver.answers = [status]
    controller = NotificationsController(context, patience_s=PATIENCE_S)
    controller.tick()
    happens(context, "run.failed")
    controller.tick()
    assert len(receiver.came) == 1
    with context.store.read() as connection:
        (event,) = event_store.list_after(connection, 0, type="notification.failed")
    assert event.data["error"] == f"The webhook at '127.0.0.1' refused the request with status {status}."
    assert "webhook-signature" not in receiver.came[0][0]


def test_a_receiver_that_says_nothing_keeps_no_other_from_being_notified(
    context: ServerContext, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(url: str, body: bytes, **about: Any) -> None:
        within_s = 0.1 if url.endswith("/hidden") else PATIENCE_S
        monkeypatch.setattr(webhook_sender, "TIMEOUT_S", within_s)
        webhook_sender.post(url, body, patience_s=within_s, **about)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        wants(context, {"url": f"http://127.0.0.1:{silent.getsockname()[1]}/hidden"}, {"url": receiver.url})
        controller = NotificationsController(context, send=send, patience_s=PATIENCE_S)
        controller.tick()
        happens(context, "run.failed")
        controller.tick()
    assert len(receiver.came) == 1
    with context.store.read() as connection:
        (event,) = event_store.list_after(connection, 0, type="notification.failed")
    assert event.data["error"] == "The webhook at '127.0.0.1' cannot be reached: ReadTimeout."
    assert event.data["then"] == "it will be retried later"


def test_a_receiver_that_never_answers_delays_no_other(context: ServerContext) -> None:
    ended, living = threading.Event(), list[str]()

    def send(url: str, _body: bytes, **_about: Any) -> None:
        if url.endswith("/dead"):
            ended.wait(PATIENCE_S)
        else:
            living.append(url)

    wants(context, {"url": "http://127.0.0.1:9/dead"}, {"url": "http://127.0.0.1:9/living"})
    controller = NotificationsController(context, send=send, patience_s=0.0)
    try:
        for number in (1, 2):
            happens(context, "run.failed", f"run/r{number}")
            wait_until(lambda count=number: bool(controller.tick()) and len(living) == count, "the living one is told")  # type: ignore[misc]
    finally:
        ended.set()


def test_a_running_server_tells_and_goes_on_where_another_ended(context: ServerContext, receiver: Receiver) -> None:
    wants(context, {"url": receiver.url})
    with answering(context, control=True):
        wait_until(lambda: _has_begun(context), "it knows the webhook")
        happens(context, "run.failed", "run/first")
        wait_until(lambda: len(receiver.came) == 1, "the first is told")
    context.shutdown.clear()
    happens(context, "run.failed", "run/second")
    with answering(context, control=True):
        wait_until(lambda: len(receiver.came) == 2, "the second is told")
    assert [json.loads(body)["event"]["subject"] for _, body in receiver.came] == ["run/first", "run/second"]


def _has_begun(context: ServerContext) -> bool:
    with context.store.read() as connection:
        row = application_store.find(connection, "mnist")
        assert row is not None
        return webhook_positions.find_position(connection, build_targets(row)[0].key) is not None
