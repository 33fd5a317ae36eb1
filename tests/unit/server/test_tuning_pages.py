"""The pages of searches: read in the background, of the caller's applications alone, from files that anybody wrote."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest

from scanflow.errors import InvalidError, NotFoundError, UnavailableError
from scanflow.knowledge.knowledge_records import TrackedRun
from scanflow.knowledge.memory import MemoryKnowledge
from scanflow.tuning.candidates import Candidate
from scanflow.tuning.goals import Measurement
from scanflow.tuning.result import Trial, TuningResult
from scanflow_server import tuning_runs
from scanflow_server.background_reads import OPENED_PAUSE_S, BackgroundReads
from scanflow_server.dashboard.tuning_pages import describe_search
from scanflow_server.server_context import ServerContext
from scanflow_server.store import application_store
from scanflow_server.tuning_runs import list_searches, load_search, parse_search
from tests.unit.server.answering import a_service
from tests.unit.server.page_browser import browsing
from tests.unit.server.server_rows import Api
from tests.waiting import wait_until

HOSTILE = "<script>alert('x')</script>"
DEFAULT, BEST = Candidate(instances=1, cores=4.0), Candidate(instances=4, cores=1.0, affinity="cpu")
RUN = TrackedRun(
    run_id="r1", environment="scanflow-shop-data", name="tune-digits", status="finished", started_at=datetime.now(UTC)
)


def measure(rate: float, count: int, **changes: Any) -> tuple[Measurement, ...]:
    fields: dict[str, Any] = {"rate": rate, "p50_s": 0.01, "p90_s": 0.02, "p99_s": 0.03, "requests": 50, **changes}
    return tuple(Measurement(**fields) for _ in range(count))


def make_document(**changes: Any) -> dict[str, Any]:
    trial = Trial(candidate=BEST, default=measure(100, 2), measured=measure(150, 2))
    failed = Trial(
        candidate=Candidate(instances=2, cores=2.0),
        default=measure(100, 1),
        measured=measure(0, 1, failed=3, reason=HOSTILE),
    )
    fresh = Trial(candidate=BEST, default=measure(100, 6), measured=measure(150, 6))
    return {
        "service": "digits",
        "goal": "throughput",
        "p99_s": None,
        "cores": 4,
        "default": asdict(DEFAULT),
        "best": asdict(BEST),
        "candidates": 9,
        "trials": [asdict(trial), asdict(failed)],
        "fresh": asdict(fresh),
        "repeated": 1,
        "disturbed": 0,
        "interrupted": False,
        **changes,
    }


def test_a_search_is_read_as_it_was_written() -> None:
    search = parse_search(RUN, json.dumps(make_document()))
    assert (search.service, search.cores) == ("digits", 4)
    assert (search.result.winner, search.result.alternatives, len(search.result.trials)) == (BEST, 8, 2)
    shown = describe_search(search)
    assert shown["size"] == {"instances": "4", "cores": "1.0", "gpu": "0", "affinity": "cpu"}
    assert [(arm.rate, arm.score) for arm in shown["arms"][:2]] == [(100.0, None), (150.0, 1.5)]
    assert shown["arms"][2].problem == HOSTILE
    assert HOSTILE not in shown["cuts"](960) + shown["frontier"](350)


@pytest.mark.parametrize(
    "changes",
    [
        {"cores": "many"},
        {"cores": 0},
        {"cores": float("inf")},
        {"best": {"instances": 0, "cores": 1.0}},
        {"best": {"instances": 1, "cores": 1.0, "affinity": HOSTILE}},
        {"best": {"instances": 1, "cores": 1.0, "gpu": HOSTILE}},
        {"default": None},
        {"trials": "x"},
        {"trials": [{"candidate": asdict(BEST), "default": [], "measured": []}]},
        {"trials": [asdict(Trial(candidate=BEST, default=measure(1, 1), measured=measure(-1, 1)))]},
        {"trials": [asdict(Trial(candidate=BEST, default=measure(1, 1), measured=measure(1, 1, p99_s=float("nan"))))]},
        {"trials": [asdict(Trial(candidate=BEST, default=measure(1, 2), measured=measure(1, 1)))]},
        {"p99_s": 0},
        {"goal": "fame"},
    ],
)
def test_a_file_that_is_none_of_a_search_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="is not one of scanflow tune"):
        parse_search(RUN, json.dumps(make_document(**changes)))


@pytest.fixture
def tracker(context: ServerContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> MemoryKnowledge:
    """A tracker with a search of each of two teams, and another run."""
    knowledge = MemoryKnowledge()
    files = tmp_path / "files"
    files.mkdir()
    (files / "tuning.json").write_text(json.dumps(make_document()))
    for team, kind in (("data", "tuning"), ("others", "tuning"), ("data", "load")):
        params = {"service": f"digits-of-{team}", "goal": HOSTILE, "best.instances": 4}
        tags = {"scanflow.kind": kind}
        knowledge.log_run("shop", team, name=f"{kind}-{team}", params=params, tags=tags, artifacts=files)
    monkeypatch.setattr(tuning_runs, "open_tracker", lambda _context: knowledge)
    with context.store.write() as connection:
        for team in ("data", "others"):
            document = {"name": "shop", "team": team}
            application_store.put(connection, name="shop", team=team, document=document, source=None, at=1.0)
    return knowledge


def test_a_team_sees_the_searches_of_its_applications_alone(
    api: Api, context: ServerContext, tracker: MemoryKnowledge
) -> None:
    own, other = (tracker.search_runs("shop", team, tuning_runs.FILTER)[0] for team in ("data", "others"))
    assert [run.name for run in list_searches(context, [("shop", "data")])] == ["tuning-data"]
    for run_id in (
        other.run_id,
        "absent",
        tracker.search_runs("shop", "data", "tags.`scanflow.kind` = 'load'")[0].run_id,
    ):
        with pytest.raises(NotFoundError, match="There is no search"):
            load_search(context, run_id, [("shop", "data")])
    with browsing(api, "vic", "viewer", "data") as browser:
        assert "Reading MLflow" in browser.get("/tuning")
        wait_until(lambda: "tuning-data" in browser.get("/tuning"), "the searches are read")
        page = browser.get("/tuning")
        assert "others" not in page
        assert HOSTILE not in page
        wait_until(lambda: "<svg" in browser.get(f"/tuning/{own.run_id}"), "the search is read")
        page = browser.get(f"/tuning/{own.run_id}")
        assert HOSTILE not in page
        assert "1.50×" in page
        assert "scanflow scale digits 4 --cores 1.0 --affinity cpu" in page
        assert "Apply it" not in page, "a viewer resizes nothing"
        browser.client.get(f"/tuning/{other.run_id}")
        wait_until(lambda: browser.client.get(f"/tuning/{other.run_id}").status_code == 404, "there is none")


def test_the_searches_for_a_service_are_listed_where_its_application_is_unknown(
    api: Api, context: ServerContext, tracker: MemoryKnowledge, monkeypatch: pytest.MonkeyPatch
) -> None:
    for app in ("hat", "shoe"):
        tracker.log_run(app, "data", name=f"tune-{app}", tags={"scanflow.kind": "tuning"})
    served = a_service("digits", "ready").model_copy(update={"app": "hat", "team": "data"})
    monkeypatch.setattr(context.deployer, "services", lambda **_: [served])
    with browsing(api, "vic", "viewer", "data") as browser:
        wait_until(lambda: "tune-hat" in browser.get("/tuning"), "the searches are read")
        assert "tune-shoe" not in browser.get("/tuning"), "nothing of it is known here"


def test_a_tracker_that_is_not_there_is_said_and_read_again_when_the_page_is_opened(
    api: Api, context: ServerContext, monkeypatch: pytest.MonkeyPatch, tracker: MemoryKnowledge
) -> None:
    def fail(_context: object) -> MemoryKnowledge:
        raise UnavailableError("No MLflow runs behind this server. Start it: scanflow up")

    now = [100.0]
    context.background_reads = BackgroundReads(context.store_notifier.notify, clock=lambda: now[0])
    with monkeypatch.context() as patch, browsing(api, "eva", "editor", "data") as browser:
        patch.setattr(tuning_runs, "open_tracker", fail)
        wait_until(lambda: "No MLflow runs" in browser.get("/tuning"), "the problem is said")
        patch.setattr(tuning_runs, "open_tracker", lambda _context: tracker)
        assert "No MLflow runs" in browser.get("/tuning")
        now[0] += OPENED_PAUSE_S + 1
        wait_until(lambda: "tuning-data" in browser.get("/tuning"), "the searches are read")


def test_mlflow_is_not_loaded_where_no_server_of_it_runs(context: ServerContext) -> None:
    with pytest.raises(UnavailableError, match="scanflow up"):
        tuning_runs.open_tracker(context)


def test_an_unmeasured_result_has_no_winner() -> None:
    result = TuningResult.from_json(make_document(trials=[], fresh=None))
    assert (result.winner, result.trials) == (None, ())
