"""What the agents of an application did, as a page that ``scanflow events --report`` writes."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import httpx2
import pytest

from scanflow.agent.agent_records import Event
from scanflow.backends.run_records import DeviceUse, RunRecord, TaskRecord
from scanflow.drift.promotion import decide
from scanflow.drift.slices import Slice
from scanflow.errors import NotFoundError, UnavailableError, UsageError
from scanflow.names import StepName
from scanflow.reports.event_report import report_page
from scanflow.reports.loop_events import TYPES, count_answers
from scanflow.testing.accelerators import GIB
from scanflow.transport import ServerClient
from scanflow_client import control_client
from scanflow_client.control_client import ControlClient
from scanflow_client.report import write_report

SVG = "{http://www.w3.org/2000/svg}"


def make_event(id: int, type: str, *, app: str = "shop", subject: str = "", **data: Any) -> Event:
    return Event(id=id, at=100.0 + id, type=type, app=app, subject=subject, data={"agent": "planner", **data})


def make_evaluation_event(id: int, model: str = "digits", *, app: str = "shop", version: int = 2) -> Event:
    figures = {"champion": 1, "champion_metric": 0.8, "challenger_metric": 0.9, "metric": "accuracy", "better": True}
    return make_event(id, "model.judged", app=app, subject=f"model/{model}", version=version, run="a-b-1", **figures)


NOWHERE: dict[str, Any] = {"tracker": {"url": None, "ready": False}, "agents": []}


def keeps(*events: Event, status: dict[str, Any] = NOWHERE, run: RunRecord | None = None) -> ControlClient:
    """A server that lists these events as the real one does: after a number, of some types, so many at once."""

    def handle(request: httpx2.Request) -> httpx2.Response:
        asked = request.url.params
        if "/runs/" in request.url.path:
            if run is None or not request.url.path.endswith(f"/runs/{run.name}"):
                return httpx2.Response(404)
            return httpx2.Response(200, json=run.model_dump(mode="json"))
        if request.url.path.endswith("/labels"):
            return httpx2.Response(200, json=[])
        if request.url.path.endswith("/status"):
            return httpx2.Response(200, json=status)
        page = [event for event in events if event.id > int(asked["after"]) and event.type in asked.get_list("type")]
        return httpx2.Response(200, json=[event.model_dump(mode="json") for event in page[: int(asked["limit"])]])

    return ControlClient(lambda: ServerClient("http://server", transport=httpx2.MockTransport(handle)))


def test_the_only_application_s_report_is_written(tmp_path: Path) -> None:
    server = keeps(
        make_event(1, "predictions.counted", predictions=1200, new=1000),
        make_event(2, "run.started"),
        make_evaluation_event(3),
    )
    path = write_report(server, None, tmp_path / "reports")
    assert path == tmp_path / "reports" / "shop.html"
    page = path.read_text(encoding="utf-8")
    assert "The loop of shop" in page
    assert "1,000 predictions" in page
    assert "V2 0.900 &gt; 0.800: better" in page


def test_runs_and_versions_are_linked_where_the_tracker_has_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(url: str) -> Any:
        asked.append(url)
        return {"experiment": {"experiment_id": "7"}}

    monkeypatch.setattr("scanflow_client.report.fetch_json", answer)
    tracker, agents = {"url": "http://127.0.0.1:5000/", "ready": True}, [{"app": "shop", "team": "data"}]
    events = [make_event(1, "drift.found", run="a-b-1"), make_evaluation_event(2)]
    page = write_report(keeps(*events, status={"tracker": tracker, "agents": agents}), None, tmp_path).read_text()
    assert asked == ["http://127.0.0.1:5000/api/2.0/mlflow/experiments/get-by-name?experiment_name=scanflow-shop-data"]
    run = "#/experiments/7/runs?searchFilter=tags.%60scanflow.run%60%20%3D%20%27a-b-1%27"
    assert set(re.findall(r'href="(http[^"]*)"', page)) == {
        f"http://127.0.0.1:5000/{where}" for where in (run, "#/models/digits/versions/1", "#/models/digits/versions/2")
    }
    for elsewhere in ({**tracker, "ready": False}, {**tracker, "url": "sqlite:///mlflow.db"}):
        status = {"tracker": elsewhere, "agents": agents}
        assert "<a " not in write_report(keeps(*events, status=status), None, tmp_path).read_text()
    assert len(asked) == 1


def test_the_gpus_that_a_run_had_are_named_and_nothing_is_said_of_runs_without(tmp_path: Path) -> None:
    use = DeviceUse(number=0, uuid="a", name="NVIDIA H100", sharing="exclusive", memory_bytes=80 * GIB)
    names = ("prepare", "train.0", "train.1")
    devices = ((), (use,), (use.model_copy(update={"number": 1}),))
    tasks = tuple(
        TaskRecord(task=StepName(name), step=name.partition(".")[0], state="succeeded", devices=own)
        for name, own in zip(names, devices, strict=True)
    )
    about: Any = {"name": "a-b-1", "app": "shop", "team": "data", "workflow": "w", "state": "succeeded", "created": 1.0}
    events = [make_evaluation_event(1), make_event(2, "drift.found", run="deleted")]
    page = write_report(keeps(*events, run=RunRecord(**about, tasks=tasks)), None, tmp_path).read_text()
    shown = re.sub(r"<[^>]*>", "|", page[page.index("GPUs of the runs") :])
    assert "|a-b-1||train||GPU 0 NVIDIA H100, 80 GiB; GPU 1 NVIDIA H100, 80 GiB|" in shown
    assert "prepare" not in shown
    assert "GPU" not in write_report(keeps(*events, run=RunRecord(**about)), None, tmp_path).read_text()


def test_a_history_longer_than_one_answer_is_wholly_read(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [make_event(id, "drift.none", predictions=id) for id in range(1, 2501)]
    monkeypatch.setattr(control_client, "MAX_SEARCHED_ACTIONS", 1000)
    assert keeps(*events, make_evaluation_event(2501)).events_so_far(type=TYPES) == [
        *events,
        make_evaluation_event(2501),
    ]


def test_of_several_applications_one_is_to_be_named(tmp_path: Path) -> None:
    server = keeps(make_evaluation_event(1, app="shop"), make_evaluation_event(2, app="bank"))
    with pytest.raises(
        UsageError, match=r"There are events of the applications bank, shop\. Name one: scanflow events --report --app"
    ):
        write_report(server, None, tmp_path)
    with pytest.raises(NotFoundError, match=r"No agent of .shopp. .* Did you mean .shop."):
        write_report(server, "shopp", tmp_path)
    assert write_report(server, "shop", tmp_path).name == "shop.html"


def test_where_nothing_was_reported_the_next_command_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="See which agents run: scanflow agents"):
        write_report(keeps(), None, tmp_path)


def test_the_road_map_is_of_the_model_judged_last_and_says_that_there_are_others() -> None:
    page = report_page("shop", [make_evaluation_event(1, "digits"), make_evaluation_event(2, "letters", version=7)])
    assert "Versions, accuracy and outcomes are of letters. Also compared: digits." in page
    assert "Also compared" not in report_page("shop", [make_evaluation_event(1), make_evaluation_event(2, version=3)])


def test_a_page_tells_how_many_points_were_picked_and_who_is_the_champion_after_a_rejection() -> None:
    event = make_event(1, "drift.found", anomalies=300, picked=200, predictions=1000, run="a-b-0")
    promoted = make_event(4, "model.promoted", subject="model/digits", version=2, before=1)
    rejected = make_event(5, "model.rejected", subject="model/digits", version=2, why="it fails")
    looked = make_event(2, "drift.none", predictions=1000, run="a-b-2")

    page = report_page("shop", [event, looked, make_evaluation_event(3), promoted, rejected])

    assert "<dt>samples selected</dt><dd>200</dd>" in page
    assert "<dt>champion</dt><dd>V1, 80.0%</dd>" in page
    looks = page.partition("Agent activity")[2].count("stroke-dasharray")
    assert looks == 2 * 2  # one that found drift, and one that did not; on a wide page and on a phone's


def test_a_report_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "reports").touch()
    with pytest.raises(UnavailableError, match=r"cannot be written to .*: File exists"):
        write_report(keeps(make_evaluation_event(1)), None, tmp_path / "reports")


# -- what became of the drift, and what was seen meanwhile

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
COLUMN = {
    "name": "<latitude>",
    "test": "ks",
    "statistic": 0.4,
    "p": 0.001,
    "effect": 0.41,
    "reference": {"mean": 35.0, "sd": 2.0},
    "current": {"mean": 37.0, "sd": 2.0},
    "shares": {"bins": ["30", "35", "40"], "reference": [0.2, 0.6, 0.2], "current": [0.0, 0.3, 0.7]},
}
CITY = {"name": "city", "test": "chi2", "p": 0.002, "reference": {"Vic": 1.0}, "current": {"Vic": 0.4, "Olot": 0.6}}
PLAIN = {"name": "rooms", "test": "ks", "reference": {"mean": 3.0, "sd": 1.0}, "current": {"mean": 4.5}}


def make_drift_event(id: int, run: str, **more: Any) -> Event:
    return make_event(id, "drift.found", anomalies=300, picked=2, predictions=1000, run=run, **more)


def labels(run: str, right: int, n: int, **more: Any) -> list[dict[str, Any]]:
    """Labelled points, of which so many are for evaluation, and as many to learn from that were all wrong."""
    points = [{"purpose": "evaluate", "guess": 1, "label": 1 if at < right else 2} for at in range(n)]
    points += [{"purpose": "train", "guess": 1, "label": 2} for _ in range(n)]
    fields = {"run": run, "state": "given", "given": 103.0, "by": "ada", "score": 0.5, **more}
    return [{**fields, **point, "id": f"{run}/{at}"} for at, point in enumerate(points)]


def evidence(**about: Any) -> dict[str, Any]:
    now = Slice(name="current", n=60, champion_right=43, challenger_right=56, gained=14)
    return decide([now]).evidence(version=2, champion=1, run="a-b-1", **about).model_dump(mode="json")


def with_data(event: Event, **data: Any) -> Event:
    return event.model_copy(update={"data": {**event.data, **data}})


def waits() -> dict[str, Any]:
    now = Slice(name="current", n=9, champion_right=5, challenger_right=6, gained=1)
    return decide([now]).evidence(version=2, champion=1).model_dump(mode="json")


def verdicts(page: str) -> list[str]:
    return re.findall(r'<p class="verdict">(.*?)</p>', page)


PROMOTED = make_event(4, "model.promoted", subject="model/digits", version=2, before=1)
EVIDENCED = with_data(make_evaluation_event(3), evidence=evidence())


@pytest.mark.parametrize(
    ("events", "message"),
    [
        pytest.param([make_drift_event(1, "a-b-0")], "No sample is labelled yet.", id="found"),
        pytest.param(
            [make_drift_event(1, "a-b-0"), make_event(2, "labels.given", count=90, by="ada")],
            "Its samples are labelled; no model was trained on them yet.",
            id="labelled",
        ),
        pytest.param(
            [make_drift_event(1, "a-b-0"), with_data(make_evaluation_event(3), evidence=waits())],
            "V2 was trained on it and waits: evaluated on 9 points of 50; about 41 more labelled points would decide.",
            id="waits",
        ),
        pytest.param(
            [make_drift_event(1, "a-b-0"), make_evaluation_event(3)],
            "V2 was trained on it and is better; it is not promoted yet.",
            id="better",
        ),
        pytest.param(
            [make_drift_event(1, "a-b-0"), with_data(make_evaluation_event(3), better=False)],
            "V2 was trained on it and was rejected: it is not better.",
            id="rejected",
        ),
        pytest.param(
            [make_drift_event(1, "a-b-0"), EVIDENCED, PROMOTED],
            "V2 was trained on it and promoted; no detection has checked the result yet.",
            id="promoted",
        ),
        pytest.param(
            [
                make_drift_event(1, "a-b-0"),
                EVIDENCED,
                PROMOTED,
                make_event(5, "drift.none", predictions=800, run="a-b-5"),
            ],
            "The drift is gone: V2 was trained on it and promoted, and no drift was found since in 800 predictions.",
            id="gone",
        ),
        pytest.param(
            [
                make_drift_event(1, "a-b-0", columns=[CITY]),
                EVIDENCED,
                PROMOTED,
                make_drift_event(5, "a-b-5", columns=[CITY, PLAIN]),
            ],
            "V2 was trained on it and promoted, but drift was found again, in city as before.",
            id="still there",
        ),
        pytest.param(
            [make_drift_event(1, "a-b-0"), PROMOTED, make_event(5, "model.rejected", version=2, why="it fails")],
            "V2 was reverted: it fails.",
            id="taken back",
        ),
        pytest.param(
            [make_drift_event(1, "a-b-0"), make_event(5, "model.rejected", version=2, why="not wanted")],
            "V2 was rejected: not wanted.",
            id="never in use",
        ),
        pytest.param(
            [make_drift_event(1, "a-b-0"), make_event(2, "drift.none", run="a-b-1")],
            "The drift is gone: no model was promoted, and no drift was found since.",
            id="gone by itself",
        ),
    ],
)
def test_the_page_ends_with_what_became_of_the_drift(events: list[Event], message: str) -> None:
    assert verdicts(report_page("shop", events))[0] == message


def test_a_drift_that_is_suspected_again_is_not_gone() -> None:
    again = make_event(5, "drift.suspected", anomalies=20, predictions=800, run="a-b-5", why="1 of the last 3 looks")
    page = report_page("shop", [make_drift_event(1, "a-b-0"), EVIDENCED, PROMOTED, again])
    assert verdicts(page) == ["V2 was trained on it and promoted; no detection has checked the result yet."]
    assert "20 of 800 samples are outliers: 1 of the last 3 looks" in page


def test_numbers_have_their_n_and_interval_and_every_version_that_served_is_listed() -> None:
    asked: dict[str, Any] = {"since": 90.0, "version": "V1", "requests": 500, "errors": 3, "p95_s": 0.004}
    events = [make_event(0, "service.measured", **asked), make_drift_event(1, "a-b-0"), EVIDENCED, PROMOTED]
    page = report_page("shop", events, labels("a-b-0", right=40, n=60))

    rows = [re.findall(r">([^<>]*)</td>", row) for row in re.findall("<tr><td.*</tr>", page)]
    [first] = [row for row in rows if row[0] == "V1"]
    assert first[2:] == ["500", "3", "66.7% (54.1% to 77.3%), n 60", "71.7% (59.2% to 81.5%), n 60"]
    [second] = [row for row in rows if row[0] == "V2 champion"]
    assert second[1:] == ["", "", "", "", "93.3% (84.1% to 97.4%), n 60"]
    assert "Replace version 1 (71.7 %) by version 2 (93.3 %), n = 60, +21.7 points" in page
    assert "120 points, 60 of them for evaluation, by ada" in page
    assert "V1: 66.7% (54.1% to 77.3%), n 60" in page  # the point in the plot
    assert page.count(">V2 in use</text>") == 2 + 3  # the swap, over accuracy and over each plot of the service
    assert page.count("All times are UTC") == 1
    for name in ("requests a second", "failed requests", "p95, ms"):
        assert f"<figcaption>{name}</figcaption>" in page


def test_what_was_not_reported_is_said_in_a_line_and_an_older_log_is_drawn_all_the_same() -> None:
    page = report_page("shop", [make_drift_event(1, "a-b-0"), make_evaluation_event(3), PROMOTED])

    for line in (
        "is labelled yet. Label samples: scanflow labels",
        "No detection reported columns.",
        "No sample was selected.",
        "The requests to the service are unknown",
    ):
        assert page.count(line) == 1
    assert "V2 90.0%, the champion 80.0% on the same samples, number unknown: better" in page
    assert '<td data-head="accuracy when compared">80.0%, n unknown</td>' in page


def list_bar_titles(shares: dict[str, tuple[float, float]]) -> list[str]:
    times = ("before", "now")
    return [
        f"{name}, {when}: {share}%" for name, both in shares.items() for when, share in zip(times, both, strict=True)
    ]


def test_columns_are_drawn_with_what_is_known_of_them_and_nothing_in_them_becomes_an_element() -> None:
    page = report_page("shop", [make_drift_event(1, "a-b-0", columns=[COLUMN, CITY, PLAIN])])

    drawings = [ET.fromstring(element) for element in re.findall(r"<figure>(<svg.*?</svg>)", page, re.DOTALL)]
    bars = [[title.text for title in drawing.iterfind(f".//{SVG}rect/{SVG}title")] for drawing in drawings]
    shares = {"30": (20.0, 0.0), "35": (60.0, 30.0), "40": (20.0, 70.0)}
    assert bars[0] == list_bar_titles(shares)
    assert bars[1] == list_bar_titles({"Vic": (100.0, 40.0), "Olot": (0.0, 60.0)})
    assert bars[2] == []
    assert "mean 3 ± 1 → mean 4.5" in page
    assert "<latitude>" not in page


@pytest.mark.parametrize("columns", [{"a": 1}, ["a"], [{"test": "ks"}], [{"name": "a", "shares": {"bins": ["b"]}}], 7])
def test_columns_of_another_form_break_no_page(columns: Any) -> None:
    assert "Outcome of each drift" in report_page("shop", [make_drift_event(1, "a-b-0", columns=columns)])


def test_picked_points_are_shown_as_pictures_or_as_rows_with_the_drifted_columns_first() -> None:
    events = [make_drift_event(1, "a-b-0", columns=[CITY])]
    pictures = report_page("shop", events, labels("a-b-0", 1, 1, picture=PNG))
    assert pictures.count(f'src="data:image/png;base64,{PNG}"') == 2
    rows = report_page("shop", events, labels("a-b-0", 1, 1, row={"rooms": 3, "city": "<i>"}))
    assert "<th>city</th><th>rooms</th><th>prediction</th>" in rows
    assert "&lt;i&gt;" in rows
    assert "<i>" not in rows
    assert "1, is 2" in rows
    other = report_page("shop", events, labels("a-b-0", 1, 1, picture=base64.b64encode(b"GIF89a").decode()))
    assert "have no stored picture or row" in other
    assert "<img" not in other


def test_only_points_drawn_at_random_tell_the_accuracy_and_unlabelled_ones_or_unknown_guesses_do_not() -> None:
    points = labels("a-b-0", right=1, n=2)
    points[1] |= {"guess": -1}
    [count] = count_answers([make_drift_event(1, "a-b-0"), EVIDENCED], points)
    assert (count.at, count.version, count.right, count.n) == (101.0, "V1", 1, 1)
    assert count_answers([make_drift_event(1, "a-b-0")], labels("other-run-1", 1, 1)) == []
    asked: dict[str, Any] = {"since": 90.0, "version": "V7", "requests": 5, "errors": 0}
    [before] = count_answers(
        [make_event(0, "service.measured", **asked), make_drift_event(1, "a-b-0")], labels("a-b-0", 1, 1)
    )
    assert before.version == "V7"  # no version was compared yet


def test_answers_are_of_the_version_that_the_detection_names() -> None:
    drift = make_drift_event(1, "a-b-0", model="price", version=4)
    [count] = count_answers([drift, EVIDENCED], labels("a-b-0", 1, 1))
    assert count.version == "V4"


def test_versions_of_another_model_of_the_application_are_left_out() -> None:
    other = make_event(2, "model.promoted", subject="model/other", version=7, before=5)
    events = [make_drift_event(1, "a-b-0"), other, EVIDENCED, PROMOTED]
    page = report_page("shop", events, labels("a-b-0", 1, 1))
    assert ("V1: 100.0%" in page, "V7: 100.0%" in page) == (True, False)
    assert ("V2 in use" in page, "V7 in use" in page, "V7 is the champion" in page) == (True, False, True)
    assert verdicts(page) == ["V2 was trained on it and promoted; no detection has checked the result yet."]


def test_amounts_are_right_within_the_tolerance_that_was_reported_and_else_tell_nothing() -> None:
    points = [point | {"guess": 1.5} for point in labels("a-b-0", right=2, n=4)]
    points[0] |= {"label": 1.4}
    drift = make_drift_event(1, "a-b-0")
    assert count_answers([drift], points) == []
    [count] = count_answers([drift, make_event(2, "accuracy.measured", tolerance=0.2, value=0.25)], points)
    assert (count.right, count.n) == (1, 4)


def test_counts_in_another_form_are_left_out() -> None:
    wrong = [
        make_event(1, "service.measured", requests="many"),
        make_event(2, "service.measured", since=1.0, version="V1"),
    ]
    assert "The requests to the service are unknown" in report_page("shop", [*wrong, make_evaluation_event(3)])
