"""What the agents of an application did, as a page that ``scanflow events --report`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from scanflow.agent.records import Event
from scanflow.errors import NotFoundError, UnavailableError, UsageError
from scanflow.transport import ServerClient
from scanflow_client.report import loop_events_so_far, report_page, write_report


def told(id: int, type: str, *, app: str = "shop", subject: str = "", **data: Any) -> Event:
    return Event(id=id, at=100.0 + id, type=type, app=app, subject=subject, data={"agent": "planner", **data})


def judged(id: int, model: str = "digits", *, app: str = "shop", version: int = 2) -> Event:
    figures = {"champion": 1, "champion_metric": 0.8, "challenger_metric": 0.9, "metric": "accuracy", "better": True}
    return told(id, "model.judged", app=app, subject=f"model/{model}", version=version, run="a-b-1", **figures)


def keeps(*events: Event) -> ServerClient:
    """A server that lists these events as the real one does: after a number, of a type, so many at once."""

    def handle(request: httpx.Request) -> httpx.Response:
        asked = request.url.params
        found = [one for one in events if one.id > int(asked["after"]) and one.type == asked["type"]]
        return httpx.Response(200, json=[one.model_dump(mode="json") for one in found[: int(asked["limit"])]])

    return ServerClient("http://server", transport=httpx.MockTransport(handle))


def test_the_only_application_s_story_is_written(tmp_path: Path) -> None:
    server = keeps(told(1, "predictions.counted", predictions=1200, new=1000), told(2, "run.started"), judged(3))
    path = write_report(server, None, tmp_path / "reports")
    assert path == tmp_path / "reports" / "shop.html"
    page = path.read_text(encoding="utf-8")
    assert "The loop of shop" in page
    assert "1,000 predictions" in page
    assert "V2 0.900 &gt; 0.800: better" in page


def test_a_story_longer_than_one_answer_is_wholly_read() -> None:
    events = [told(id, "drift.none", predictions=id) for id in range(1, 2501)]
    assert loop_events_so_far(keeps(*events, judged(2501))) == [*events, judged(2501)]


def test_of_several_applications_one_is_to_be_named(tmp_path: Path) -> None:
    server = keeps(judged(1, app="shop"), judged(2, app="bank"))
    with pytest.raises(
        UsageError, match=r"Agents of bank, shop are at work\. Name one: scanflow events --report --app"
    ):
        write_report(server, None, tmp_path)
    with pytest.raises(NotFoundError, match=r"No agent of .shopp. .* Did you mean .shop."):
        write_report(server, "shopp", tmp_path)
    assert write_report(server, "shop", tmp_path).name == "shop.html"


def test_where_nothing_was_told_the_next_command_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="See which are at work: scanflow agents"):
        write_report(keeps(), None, tmp_path)


def test_the_road_map_is_of_the_model_judged_last_and_says_that_there_are_others() -> None:
    page = report_page("shop", [judged(1, "digits"), judged(2, "letters", version=7)])
    assert "The version history is of letters. Also judged: digits." in page
    assert "Also judged" not in report_page("shop", [judged(1), judged(2, version=3)])


def test_a_page_tells_how_many_points_were_picked_and_who_is_the_champion_after_a_rejection() -> None:
    found = told(1, "drift.found", anomalies=300, picked=200, predictions=1000, run="a-b-0")
    promoted = told(4, "model.promoted", subject="model/digits", version=2, before=1)
    rejected = told(5, "model.rejected", subject="model/digits", version=2, why="it fails")
    looked = told(2, "drift.none", predictions=1000, run="a-b-2")

    page = report_page("shop", [found, looked, judged(3), promoted, rejected])

    assert "<dt>samples selected</dt><dd>200</dd>" in page
    assert "<dt>champion</dt><dd>V1, 80.0%</dd>" in page
    assert page.count("stroke-dasharray") == 2  # a look that found drift, and one that did not


def test_a_report_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "reports").touch()
    with pytest.raises(UnavailableError, match=r"cannot be written to .*: File exists"):
        write_report(keeps(judged(1)), None, tmp_path / "reports")
