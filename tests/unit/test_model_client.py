"""A person's word on model versions: services are changed, the registry says so, agents' questions are answered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.agent.agent_records import JSON, Action, Event
from scanflow.backends.memory import Memory
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.deployer import EmbeddedDeployer
from scanflow.errors import NotFoundError, UnavailableError, UsageError
from scanflow.knowledge import MemoryKnowledge, checks
from scanflow.knowledge.version_tags import ACTION, BEFORE, BY_HAND, PROMOTION, find_rejection
from scanflow.reports.model_history import VersionHistory
from scanflow.settings import Settings
from scanflow_client.control_client import ControlClient
from scanflow_client.formatting.model_text import format_models, format_versions, suggest_versions
from scanflow_client.formatting.text_table import format_lines
from scanflow_client.listing import Listing
from scanflow_client.model_client import ModelClient, change_version
from tests.notebooks import render_bundle
from tests.unit.test_agents_command_line import action

CNN = "cnn"


class Constant:
    def predict(self, x: Any) -> Any:
        return x


class Server(ControlClient):
    """Stands for the server: what waits for a person, and what it was told."""

    def __init__(self, *waiting: Action) -> None:
        self.waiting, self.reports, self.decisions = list(waiting), list[Event](), list[tuple[str, str, str]]()

    def approvals(self, *, limit: int = 1000) -> Listing[Action]:
        return Listing(self.waiting[:limit])

    def _decide(self, action: str, word: str, reason: str) -> Action:
        self.decisions.append((word, action, reason))
        return next(request for request in self.waiting if request.id == action)

    def events_so_far(self, after: int = 0, *, type: Any = None, app: str | None = None) -> list[Event]:
        return [event for event in self.reports if event.type in type and after == 0 and app is None]

    def tell(self, events: Sequence[Event]) -> list[Event]:
        self.reports += events
        return [*events]


class Shop:
    def __init__(self, settings: Settings, folder: Path, *waiting: Action) -> None:
        self.knowledge, self.server = MemoryKnowledge(), Server(*waiting)
        models = {f"models:/{CNN}/{number}": Constant() for number in (1, 2, 3)}
        self.deployer = EmbeddedDeployer(settings, backend=Memory(models=models))
        (folder / "weights").mkdir()
        (folder / "weights" / "w").write_bytes(b"1")
        for _ in models:
            self.knowledge.register_model(CNN, folder / "weights", app="shop", team="default")
        self.knowledge.set_model_alias(CNN, "champion", 1)
        self.client = ModelClient(self.knowledge, self.deployer, self.server)

    def deploy(self, *names: str) -> None:
        node = sf.Service(name="node", model=f"models:/{CNN}/1")
        for name in names:
            app = sf.Application(name="shop", workflows=[sf.Workflow(name=name, type="online", nodes=[node])])
            self.deployer.deploy(Deployment(app, name))

    def get_served_model(self, name: str = "digits") -> str:
        current = self.deployer.service(name).current
        assert current is not None
        return current.models["node"]

    def tags(self, version: int) -> dict[str, str]:
        return dict(self.knowledge.get_model(CNN, version).tags)

    @property
    def champion(self) -> int:
        return self.knowledge.get_model(CNN, "champion").version


@pytest.fixture
def shop(settings: Settings, tmp_path: Path) -> Shop:
    return Shop(settings, tmp_path)


def wish(version: int) -> Action:
    waiting = action()
    arguments = {"service": "digits", "model": f"models:/{CNN}/{version}"}
    intent = waiting.intent.model_copy(update={"arguments": arguments, "target": "service/digits"})
    return waiting.model_copy(update={"id": f"a{version}", "intent": intent, "state": "pending"})


def test_the_champion_follows_a_person_who_rolls_a_service_back_and_promotes(shop: Shop) -> None:
    def change(**options: Any) -> list[int]:
        changed = ServiceChange(**options)
        return [version.version for version in change_version(shop.deployer, "digits", changed, lambda: shop.client)[1]]

    shop.deploy("digits")
    assert change(model=f"models:/{CNN}/2") == [2]
    assert (shop.get_served_model(), shop.champion) == (f"models:/{CNN}/2", 2)
    assert change(rollback=True) == [1]
    assert (shop.get_served_model(), shop.champion) == (f"models:/{CNN}/1", 1)
    assert shop.tags(1).items() >= {PROMOTION: BY_HAND, BEFORE: "2", "scanflow.why": "scanflow rollback digits"}.items()
    assert [(event.type, event.data["version"]) for event in shop.server.reports] == [
        ("model.promoted", 2),
        ("model.promoted", 1),
    ]

    shop.knowledge.set_model_alias(CNN, "champion", 3)
    assert change(model=f"models:/{CNN}/2") == [], "the service did not serve the champion"
    assert shop.champion == 3


def test_the_champion_stays_while_another_service_serves_it(shop: Shop) -> None:
    shop.deploy("digits", "others")
    to_second = ServiceChange(model=f"models:/{CNN}/2")
    assert change_version(shop.deployer, "digits", to_second, lambda: shop.client)[1] == ()
    assert (shop.get_served_model(), shop.get_served_model("others"), shop.champion) == (
        f"models:/{CNN}/2",
        f"models:/{CNN}/1",
        1,
    )


def test_a_version_is_promoted_by_hand_and_taken_back(shop: Shop) -> None:
    shop.deploy("digits")
    outcome = shop.client.promote(CNN, 3, why="the audit says so")
    assert (outcome.done, outcome.services, outcome.before) == ("promoted", ("digits",), 1)
    assert (shop.get_served_model(), shop.champion) == (f"models:/{CNN}/3", 3)
    assert shop.tags(3).items() >= {PROMOTION: BY_HAND, BEFORE: "1"}.items()
    (event,) = shop.server.reports
    assert (event.type, event.app, event.subject) == ("model.promoted", "shop", f"model/{CNN}")
    assert event.data == {"agent": "person", "version": 3, "before": 1, "why": "the audit says so"}

    back = shop.client.reject(CNN, 3, why="it was wrong")
    assert (back.done, back.services, back.before) == ("rejected", ("digits",), 1)
    assert (shop.get_served_model(), shop.champion, find_rejection(shop.tags(3))) == (
        f"models:/{CNN}/1",
        1,
        "it was wrong",
    )
    assert [entry.type for entry in shop.server.reports] == ["model.promoted", "model.rejected"]


def test_what_was_in_use_before_is_what_was_answered_with_whatever_the_alias_says(shop: Shop) -> None:
    shop.deploy("digits")
    shop.knowledge.set_model_alias(CNN, "champion", 2)  # as a script does that trains
    assert shop.client.promote(CNN, 2).before == 1
    shop.client.reject(CNN, 2)
    assert (shop.get_served_model(), shop.champion) == (f"models:/{CNN}/1", 1)
    *_, first = shop.client.list_histories(CNN)
    assert first.since == shop.server.reports[-1].at


def test_the_same_again_completes_what_was_cut_off(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.deploy("digits")
    with monkeypatch.context() as patch:
        patch.setattr(shop.knowledge, "set_model_alias", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shop.client.promote(CNN, 2)
    assert (shop.get_served_model(), shop.champion) == (f"models:/{CNN}/2", 1)
    shop.client.promote(CNN, 2)
    assert (shop.champion, shop.tags(2)[BEFORE]) == (2, "1")
    shop.client.promote(CNN, 2)
    assert shop.tags(2)[BEFORE] == "1"


def test_what_waits_for_a_person_is_approved_and_left_to_the_agent(settings: Settings, tmp_path: Path) -> None:
    shop = Shop(settings, tmp_path, wish(2), wish(3))
    shop.deploy("digits")
    outcome = shop.client.promote(CNN, 3, why="yes")
    assert (outcome.done, outcome.actions, shop.server.decisions) == ("approved", ("a3",), [("approve", "a3", "yes")])
    assert (shop.get_served_model(), shop.champion, PROMOTION in shop.tags(3)) == (f"models:/{CNN}/1", 1, False)


def test_what_agents_want_with_a_version_is_refused_with_it(settings: Settings, tmp_path: Path) -> None:
    shop = Shop(settings, tmp_path, wish(2), wish(3))
    shop.deploy("digits")
    outcome = shop.client.reject(CNN, 3)
    assert (outcome.actions, shop.server.decisions, outcome.before) == (("a3",), [("refuse", "a3", "")], None)
    assert (find_rejection(shop.tags(3)), shop.tags(3)[ACTION], shop.champion) == ("by hand", "a3", 1)


def test_of_several_services_one_has_to_be_named(shop: Shop) -> None:
    shop.deploy("digits", "backup")
    with pytest.raises(UsageError, match=r"digits.*scanflow models promote cnn 2 --service (digits|backup)"):
        shop.client.promote(CNN, 2)
    with pytest.raises(UsageError, match="'letters' does not serve the model 'cnn'"):
        shop.client.promote(CNN, 2, services=["letters"])
    shop.client.promote(CNN, 2, services=["digits"])
    assert (shop.get_served_model("digits"), shop.get_served_model("backup")) == (
        f"models:/{CNN}/2",
        f"models:/{CNN}/1",
    )


def test_without_a_service_or_a_server_the_registry_says_it(shop: Shop) -> None:
    alone = ModelClient(shop.knowledge, shop.deployer, None)
    assert alone.promote(CNN, 2).services == ()
    assert shop.champion == 2
    assert alone.reject(CNN, 2).before == 1
    assert (shop.champion, shop.server.reports) == (1, [])


def test_what_cannot_be_done_changes_nothing(shop: Shop) -> None:
    shop.deploy("digits")
    with pytest.raises(UsageError, match=r"Version 1 of 'cnn' is in use, and there is no accepted previous version"):
        shop.client.reject(CNN, 1)
    with pytest.raises(NotFoundError, match=r"no version 9\. Known: 1, 2, 3"):
        shop.client.promote(CNN, 9)
    assert (shop.champion, PROMOTION in shop.tags(1), shop.server.reports) == (1, False, [])


def make_evaluation_event(version: int, verdict: str, *, at: float) -> Event:
    current: JSON = {
        "name": "current",
        "n": 120,
        "champion_right": 82,
        "challenger_right": 109,
        "low": 0.147,
        "high": 0.296,
    }
    evidence: JSON = {"verdict": verdict, "reason": "by a lot", "champion": 1, "drifted": ["age"], "slices": [current]}
    return Event(
        at=at,
        type="model.judged",
        app="shop",
        subject=f"model/{CNN}",
        data={
            "agent": "planner", "version": version, "champion": 1, "run": "training-1", "better": verdict == "promote",
            "champion_metric": 0.683, "challenger_metric": 0.908, "evidence": evidence,
        },
    )  # fmt: skip


def format_screen(versions: Listing[VersionHistory]) -> str:
    return "\n".join(format_lines([*format_versions(versions), *format_models(versions)]))


def test_the_versions_say_what_became_of_them(shop: Shop) -> None:
    shop.deploy("digits")
    drift = Event(at=1.0, type="drift.found", app="shop", subject="workflow/w", data={"agent": "checker", "run": "d-7"})
    shop.server.reports = [drift, make_evaluation_event(2, "wait", at=2.0), make_evaluation_event(3, "ask", at=3.0)]
    shop.client.promote(CNN, 2, why="why not")
    shop.client.reject(CNN, 3, why="too odd")
    third, second, first = shop.client.list_histories(CNN)
    assert (second.champion, second.services, second.before, second.verdict) == (True, ("digits",), 1, BY_HAND)
    assert second.since == shop.server.reports[3].at
    assert (third.verdict, third.reason, third.in_use, third.drift) == ("rejected", "too odd", False, "d-7")
    assert (third.against, third.drifted, third.compared[0].n) == (1, ("age",), 120)
    assert (first.verdict, first.in_use, first.compared) == ("", False, ())
    assert shop.client.list_histories() == [third, second, first]

    text = format_screen(shop.client.list_histories(CNN))
    assert "current: 68.3 to 90.8 %, +22.5 points (+14.7 to +29.6), n = 120, with version 1" in text
    assert "Reject version 2: scanflow models reject cnn 2" in text
    assert "2 (champion, in digits)" in text
    assert "\n  too odd\n" in render_bundle(shop.client.list_histories(CNN))["text/plain"]
    assert "2 (champion, in digits)" in render_bundle(shop.client.list_histories())["text/plain"]


def test_a_comparison_that_began_before_a_promotion_changes_nothing_about_it(shop: Shop) -> None:
    shop.deploy("digits")
    shop.client.promote(CNN, 2, why="why not")
    (promoted,) = [event for event in shop.server.reports if event.type == "model.promoted"]
    late = make_evaluation_event(3, "promote", at=promoted.at + 60)
    late = late.model_copy(update={"data": {**late.data, "began": promoted.at - 60}})
    drifts = [
        Event(at=late.at - ago, type="drift.found", app="shop", data={"agent": "checker", "run": run})
        for ago, run in ((200, "before-1"), (30, "meanwhile-1"))
    ]
    shop.server.reports = [drifts[0], promoted, drifts[1], late]
    third, second, _ = shop.client.list_histories(CNN)
    assert (second.champion, second.since) == (True, promoted.at)
    assert third.drift == "before-1", "its training had begun when the other was found"
    assert (third.verdict, third.reason) == ("not promoted", "it was compared with version 1, and 2 is in use")


def test_no_command_is_suggested_that_would_be_refused(shop: Shop) -> None:
    shop.deploy("digits")
    shop.client.promote(CNN, 2)
    shop.client.reject(CNN, 1)
    assert "Promote another version: scanflow models promote cnn 3" in format_screen(shop.client.list_histories(CNN))
    shop.client.reject(CNN, 3)
    assert "Retrain it, or register another version of cnn" in format_screen(shop.client.list_histories(CNN))


def test_a_model_that_another_program_named_oddly_is_listed_and_cannot_be_served(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = "emoji😀 %2F"
    with monkeypatch.context() as unchecked:
        unchecked.setattr(checks, "check_model_name", str)
        shop.knowledge.register_model(odd, Path(__file__), app="shop", team="default")
    listed = format_lines(format_models(shop.client.list_histories()))
    assert any(line.startswith(CNN) for line in listed)
    assert any(line.startswith(odd) and "cannot be served under this name" in line for line in listed)
    shown = "\n".join(format_lines(format_versions(shop.client.list_histories(odd))))
    assert "A model cannot be called 'emoji😀 %2F'" in shown
    assert "scanflow models promote" not in shown
    assert suggest_versions(odd).endswith("scanflow models 'emoji😀 %2F'")
    for decide in (shop.client.promote, shop.client.reject):
        with pytest.raises(UsageError, match="A model cannot be called"):
            decide(odd, 1, why="it is better")


def test_a_persons_reason_and_name_stay_with_the_version(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(events: Sequence[Event]) -> list[Event]:
        named = [event.model_copy(update={"data": {**event.data, "by": "ada"}}) for event in events]
        shop.server.reports += named
        return named

    monkeypatch.setattr(shop.server, "tell", record)
    shop.deploy("digits")
    shop.client.promote(CNN, 3, why="the audit says so")
    third, *_ = shop.client.list_histories(CNN)
    assert (third.verdict, third.reason, third.by) == (BY_HAND, "the audit says so", "ada")
    shown = "\n".join(str(line) for line in format_versions([third]))
    assert "the audit says so" in shown
    assert "decided by ada" in shown
    shop.client.reject(CNN, 3, why="it was wrong")
    third, *_ = shop.client.list_histories(CNN)
    assert (third.verdict, third.reason, third.by) == ("rejected", "it was wrong", "ada")


@pytest.mark.parametrize("way", ["rollback", "promote", "canary"])
def test_a_rejected_version_comes_into_use_by_a_person_who_says_why_alone(shop: Shop, way: str) -> None:
    shop.deploy("digits")
    shop.client.promote(CNN, 2, why="the audit")
    shop.client.reject(CNN, 2, why="it discriminates")
    changes = {
        "rollback": ServiceChange(rollback=True),
        "promote": ServiceChange(model=f"models:/{CNN}/2"),
        "canary": ServiceChange(promote=True),
    }
    if way == "canary":
        shop.deployer.change("digits", ServiceChange(model=f"models:/{CNN}/2", weight=0.5))
    count = len(shop.server.reports)
    words = r"Version 2 of cnn was rejected by \w+: it discriminates\..* scanflow models promote cnn 2 --why TEXT"
    with pytest.raises(UsageError, match=words):
        change_version(shop.deployer, "digits", changes[way], lambda: shop.client)
    with pytest.raises(UsageError, match=words):
        shop.client.promote(CNN, 2)
    assert (shop.get_served_model(), shop.champion, len(shop.server.reports)) == (f"models:/{CNN}/1", 1, count)
    assert find_rejection(shop.tags(2)) == "it discriminates"

    shop.client.promote(CNN, 2, why="the audit was wrong")
    second = next(version for version in shop.client.list_histories(CNN) if version.version == 2)
    assert (shop.get_served_model(), second.verdict, second.reason) == (
        f"models:/{CNN}/2",
        BY_HAND,
        "the audit was wrong",
    )
    assert second.overruled.endswith(": it discriminates")
    assert f"before: {second.overruled}" in format_screen(shop.client.list_histories(CNN))


def test_a_rollback_goes_on_where_the_registry_cannot_be_read(shop: Shop) -> None:
    def fail() -> ModelClient:
        raise UnavailableError("The tracker is away.")

    shop.deploy("digits")
    shop.client.promote(CNN, 2)
    with pytest.raises(UnavailableError, match="the registry still names"):
        change_version(shop.deployer, "digits", ServiceChange(rollback=True), fail)
    assert shop.get_served_model() == f"models:/{CNN}/1"


def test_the_reason_goes_with_the_change_of_the_service(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str | None] = []
    change = shop.deployer.change

    def record(name: str, asked: ServiceChange, **options: Any) -> Any:
        reasons.append(asked.reason)
        return change(name, asked, **options)

    shop.deploy("digits")
    monkeypatch.setattr(shop.deployer, "change", record)
    shop.client.promote(CNN, 2, why="the audit")
    shop.client.reject(CNN, 2, why="it discriminates")
    assert reasons == ["the audit", "version 2 was rejected: it discriminates"]


def test_the_same_promotion_again_keeps_its_reason(shop: Shop) -> None:
    shop.deploy("digits")
    shop.client.promote(CNN, 2, why="the audit says so")
    shop.client.promote(CNN, 2)
    second = next(version for version in shop.client.list_histories(CNN) if version.version == 2)
    assert (second.reason, len(shop.server.reports)) == ("the audit says so", 1)
    shop.client.promote(CNN, 2, why="and the second one")
    assert (shop.tags(2)["scanflow.why"], shop.tags(2)[BEFORE]) == ("and the second one", "1")


def test_without_a_server_the_reason_is_kept_too(shop: Shop) -> None:
    alone = ModelClient(shop.knowledge, shop.deployer, None)
    alone.promote(CNN, 2, why="the first was a test")
    second = next(version for version in alone.list_histories(CNN) if version.version == 2)
    assert (second.reason, bool(second.by)) == ("the first was a test", True)
