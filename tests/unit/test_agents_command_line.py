"""Commands on agents, before a server and agents that answer as the real ones do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner, Result

from scanflow.agent.agent_records import Action, Decision, Intent, PrimitiveCall, Sample
from scanflow.drift.promotion import decide, format_decision
from scanflow.drift.slices import Slice
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.http.problems import build_problem
from scanflow.transport import ServerClient
from scanflow_client import agent_client
from scanflow_client.cli.command_tree import app
from scanflow_client.control_client import ControlClient

URL, AGENT_URL = "http://127.0.0.1:46666", "http://127.0.0.1:5001"
CHECKER = {"name": "checker", "app": "mnist", "team": "data", "state": "stopped"}
TRACKER: dict[str, Any] = {**CHECKER, "name": "tracker", "state": "running", "url": AGENT_URL, "pid": 7, "started": 1.0}
HOURLY = {"kind": "interval", "seconds": 3600.0, "jitter": 0.0}
COUNT = {"name": "count", "trigger": HOURLY, "next": None, "last": 5.0, "fired": 12, "missed": 3, "errors": 1}
APP = """
import scanflow as sf

@sf.step
def load(count: int = 2) -> int:
    return count

app = sf.Application(
    name="mnist",
    workflows=[sf.Workflow(name="training", nodes=[load.bind()])],
    agents=[
        sf.Agent(name="tracker", modules=["tracker.py"]),
        sf.Agent(name="checker", template="checker", modules=["checker.py"]),
    ],
)
"""


def action(id: str = "a1", state: Any = "pending", verdict: Any = "approve", **changes: Any) -> Action:
    sample = Sample(id="s1", agent="tracker", sensor="count", at=1.0, value=1204, cause="interval:1")
    intent = Intent(
        id=id, app="mnist", team="data", agent="tracker", strategy="count", at=1.0, sample=sample, key=f"count/{id}",
        primitive="run_workflow", arguments={"workflow": "training"}, target="workflow/training", fields=("running",),
        rule="n >= 1000, n=1204",
    )  # fmt: skip
    decision = Decision(intent=id, verdict=verdict, reason="It needs approval.", at=2.0)
    return Action(id=id, intent=intent, state=state, decision=decision, began=None, ended=None, **changes)


class Answers:
    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, dict[str, str], Any]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        place = f"{request.method} {request.url.raw_path.decode().partition('?')[0].removeprefix('/api/v1')}"
        body = json.loads(request.content) if request.content else None
        self.asked.append((place, dict(request.url.params), body))
        answer = self.answers.get(place, NotFoundError(f"There is no {place}."))
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            status, document = build_problem(answer)
            return httpx2.Response(status, json=document)
        return httpx2.Response(200, json=answer)

    @property
    def places(self) -> list[str]:
        return [place for place, _, _ in self.asked]


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(answers: dict[str, Any] | Answers, *words: str) -> Result:
        handler = answers if isinstance(answers, Answers) else Answers(answers)
        client = ServerClient(URL, token="secret", transport=httpx2.MockTransport(handler))
        monkeypatch.setattr("scanflow_client.cli.agent_commands.open_client", lambda: ControlClient(lambda: client))
        return CliRunner().invoke(app, words, catch_exceptions=False)

    return run


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "agents", "agents mnist --stop", "agents mnist:tracker --journal", "agents --start app.py", "why",
        "why @latest", "approve", "approve a1", "labels", "labels --give 1=2",
    ],
)  # fmt: skip
def test_without_a_server_every_command_says_how_to_start_one(folder: Path, words: str) -> None:
    with pytest.raises(UnavailableError, match="Start it: scanflow up"):
        CliRunner().invoke(app, words.split(), catch_exceptions=False)


def test_agents_are_listed_with_what_their_sensors_did_and_missed(run: Run) -> None:
    answers = {"GET /agents": [CHECKER, TRACKER | {"sensors": [COUNT]}]}
    _, checker, tracker, after = run(answers, "agents").stdout.splitlines()
    assert (checker.split()[0], tracker.split()[-2:]) == ("checker", ["3", "1"])
    assert after == "Show one: scanflow agents mnist:checker"
    document = json.loads(run(answers, "agents", "--json").stdout)
    assert (document[0]["sensors"], document[1]["sensors"]) == (None, [COUNT])
    for target in ("tracker", "mnist:tracker", "mnist/tracker"):
        lines = run(answers, "agents", target).stdout.splitlines()
        assert lines[3] == f"mnist:tracker, at {AGENT_URL}"
        assert lines[-1].split()[:5] == ["count", "every", "1h", "00m", "12"]
        assert "checker" not in "".join(lines)


def test_no_agent_is_said_to_be_so_and_an_unknown_one_is_refused(run: Run) -> None:
    nothing = run({"GET /agents": []}, "agents")
    assert nothing.stdout == "No agents. Start an application's: scanflow agents --start app.py\n"
    with pytest.raises(NotFoundError, match=r"'trackr'.*'tracker'"):
        run({"GET /agents": [TRACKER]}, "agents", "trackr", "--stop")
    with pytest.raises(NotFoundError, match="Start agents: scanflow agents --start"):
        run({"GET /agents": []}, "agents", "tracker")


def test_all_agents_of_an_application_are_started_and_stopped_or_one(run: Run, folder: Path) -> None:
    server = Answers({f"PUT /agents/mnist/{name}": CHECKER | {"name": name} for name in ("tracker", "checker")})
    output = run(server, "agents", "--start", "app.py").stdout
    assert "mnist:tracker  stopped\nmnist:checker  stopped\n" in output
    assert server.places == ["PUT /agents/mnist/tracker", "PUT /agents/mnist/checker"]
    body = server.asked[0][2]
    assert body["source"] == str(folder / "app.py")
    assert body["application"]["app_dir"] == str(folder)
    server.asked.clear()
    run(server, "agents", "--start", "app.py:checker", "--json")
    assert server.places == ["PUT /agents/mnist/checker"]
    with pytest.raises(NotFoundError, match="has no agent 'chekcer'"):
        run(server, "agents", "--start", "app.py:chekcer")
    agents = [CHECKER, TRACKER, TRACKER | {"app": "other"}]
    server = Answers({"GET /agents": agents, **{f"DELETE /agents/mnist/{agent['name']}": agent for agent in agents}})
    assert run(server, "agents", "--stop", "mnist").stdout.startswith("mnist:checker  stopped\n")
    assert server.places[1:] == ["DELETE /agents/mnist/checker", "DELETE /agents/mnist/tracker"]
    for target, names in (("app.py", ["checker", "tracker"]), ("app.py:checker", ["checker"])):
        server.asked.clear()
        run(server, "agents", "--stop", target)
        deleted = [place for place in server.places if place.startswith("DELETE")]
        assert deleted == [f"DELETE /agents/mnist/{name}" for name in names]
    (folder / "alone.py").write_text(APP.partition("    agents=[")[0] + ")\n")
    with pytest.raises(InvalidError, match=r"'mnist' has no agents. Give it one: sf.Application"):
        run({}, "agents", "--start", "alone.py")


def test_a_journal_ends_with_the_newest_entries_however_long_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"id": entry, "at": 1.0, "kind": "sample", "subject": "count", "body": {}} for entry in range(1, 8)]

    def journal(request: httpx2.Request) -> Any:
        after, limit = (int(request.url.params[name]) for name in ("after", "limit"))
        return [entry for entry in entries if int(str(entry["id"])) > after][:limit]

    monkeypatch.setattr(agent_client, "PAGE_SIZE", 3)
    words = ("agents", "tracker", "--journal", "--limit", "4")
    fields = {"GET /agents": [TRACKER], "GET /agents/mnist/tracker/journal": journal}
    assert [entry["id"] for entry in json.loads(run(fields, *words, "--json").stdout)] == [4, 5, 6, 7]
    assert len(run(fields, *words).stdout.splitlines()) == 4
    entries.clear()
    assert "The journal is empty" in run(fields, *words).stdout


@pytest.mark.parametrize(
    ("agents", "words", "error", "message"),
    [
        ([CHECKER, TRACKER], "mnist --journal", InvalidError, "mnist:checker, mnist:tracker"),
        ([CHECKER], "checker --journal", UnavailableError, "mnist:checker is stopped"),
        ([TRACKER], "tracker --journal", NotFoundError, "There is no GET /agents/mnist/tracker/journal"),
        ([TRACKER], "--stop", InvalidError, "Name the agent"),
        ([TRACKER], "mnist --stop --journal", InvalidError, "exclude each other"),
    ],
)
def test_what_cannot_be_done_with_agents_says_why(
    run: Run, agents: list[Any], words: str, error: type[Exception], message: str
) -> None:
    stopped = UnavailableError("The agent mnist:checker is stopped, so its journal cannot be read.")
    with pytest.raises(error, match=message):
        run({"GET /agents": agents, "GET /agents/mnist/checker/journal": stopped}, "agents", *words.split())


def test_why_lists_intents_and_explains_one(run: Run) -> None:
    story = {"lines": ["sample    count", "effect    none yet"], "action": action().model_dump(mode="json")}
    server = Answers({"GET /intents": [story["action"]], "GET /intents/a1/why": story})
    heads, row, after = run(server, "why", "--limit", "5").stdout.splitlines()
    assert heads.split() == "action when by primitive on status reason".split()
    assert "tracker/count  run_workflow  workflow/training  waiting for approval  It needs approval." in row
    assert after == "Explain one: scanflow why a1"
    assert server.asked[0][1] == {"limit": "5"}
    undo = PrimitiveCall(primitive="stop_workflow", arguments={"run": "fox-1"})
    started = action("a1", "succeeded", "act", inverse=undo, result={"run": "fox-1", "state": "running"})
    listed = run({"GET /intents": queue(started)}, "why").stdout
    assert ("started fox-1" in listed, "succeeded" in listed) == (True, False), "the run goes on by itself"
    assert run(server, "why", "a1").stdout == "sample    count\neffect    none yet\n"
    assert run(server, "why", "@latest").stdout.startswith("sample    count")
    assert json.loads(run(server, "why", "@latest", "--json").stdout) == story
    assert "No agent has requested an action yet" in run({"GET /intents": []}, "why").stdout
    with pytest.raises(NotFoundError, match="No agent has requested an action yet"):
        run({"GET /intents": []}, "why", "@latest")


def queue(*waiting: Action) -> Callable[[httpx2.Request], Any]:
    def answer(request: httpx2.Request) -> Any:
        query = request.url.params
        return [
            action.model_dump(mode="json")
            for action in waiting
            if query.get("state") in {None, action.state} and query.get("verdict") in {None, action.decision.verdict}
        ][: int(query["limit"])]

    return answer


def test_what_waits_for_approval_is_listed_before_what_is_only_suggested(run: Run) -> None:
    answers = {"GET /intents": queue(action("s1", verdict="suggest"), action("a1"), action("d1", "succeeded", "act"))}
    heads, first, second, *reasons, after = run(answers, "approve").stdout.splitlines()
    assert [reason.partition(":")[0] for reason in reasons] == ["a1", "s1"], "why each of them waits"
    assert heads.split() == "action when by requests on rule".split()
    assert 'run_workflow(workflow="training")  workflow/training  n >= 1000, n=1204' in first
    assert (first.split()[0], second.split()[0]) == ("a1", "s1")
    assert after.startswith("Approve: scanflow approve a1.")
    assert [entry["id"] for entry in json.loads(run(answers, "approve", "--json").stdout)] == ["a1", "s1"]
    part = Slice(name="current", n=59, champion_right=42, challenger_right=55, gained=14)
    evidence = decide([part]).evidence(champion=1, version=3, run="bold-fox-1").model_dump(mode="json")
    sample = Sample(id="s1", agent="e", sensor="s", at=1.0, value={"evidence": evidence}, cause="call:1")
    waits = action("a2")
    waits = waits.model_copy(update={"intent": waits.intent.model_copy(update={"sample": sample})})
    lines = run({"GET /intents": queue(waits)}, "approve").stdout.splitlines()
    assert lines[2].startswith(f"a2: {format_decision(evidence)}")
    nothing = run({"GET /intents": []}, "approve")
    assert nothing.stdout == "No action is waiting for approval. See what was done: scanflow why\n"


def test_an_action_is_approved_or_refused_with_a_reason(run: Run) -> None:
    answers = {
        "GET /intents": queue(action("a2"), action("a1")),
        "POST /intents/a1/approve": action("a1", verdict="act").model_dump(mode="json"),
        "POST /intents/a2/refuse": action("a2", "refused", "refuse").model_dump(mode="json"),
    }
    server = Answers(answers)
    output = run(server, "approve", "a1", "--reason", "looks right").stdout
    assert output.startswith('a1  run_workflow(workflow="training") on workflow/training: about to start.')
    assert output.endswith("See its effect: scanflow why a1\n")
    assert server.asked[-1] == ("POST /intents/a1/approve", {}, {"reason": "looks right"})
    earlier = action("a2", "refused", "refuse").model_copy(update={"repeats": 8, "repeated": 0.0})
    assert (
        "times)"
        not in run({"POST /intents/a2/refuse": earlier.model_dump(mode="json")}, "approve", "a2", "--refuse").stdout
    )
    refused = run(server, "approve", "@latest", "--refuse", "--json")
    assert Action.model_validate_json(refused.stdout).id == "a2"
    assert server.places[-1] == "POST /intents/a2/refuse"
    with pytest.raises(InvalidError, match="Keep one"):
        run(server, "approve", "a1", "--refuse", "--revert")
    with pytest.raises(InvalidError, match="Name the action"):
        run(server, "approve", "--refuse")
    with pytest.raises(NotFoundError, match="No action is waiting"):
        run({"GET /intents": []}, "approve", "@latest")


def test_what_was_done_is_reverted_and_said_to_be_only_when_it_is(run: Run) -> None:
    done = action("d1", "succeeded", "act", inverse=PrimitiveCall(primitive="stop_workflow", arguments={}))
    back = done.model_copy(update={"state": "reverted", "reverted_by": "ada"})
    answers: dict[str, Any] = {"GET /intents": queue(done), "POST /intents/d1/revert": back.model_dump(mode="json")}
    assert "reverted by ada." in run(answers, "approve", "@latest", "--revert").stdout
    answers["POST /intents/d1/revert"] = done.model_dump(mode="json")
    with pytest.raises(UnavailableError, match=r"not reverted yet. See its status: scanflow why d1"):
        run(answers, "approve", "d1", "--revert")
    answers["POST /intents/d1/revert"] = UsageError("nothing undoes it")
    with pytest.raises(UsageError, match="nothing undoes it"):
        run(answers, "approve", "d1", "--revert")


def test_the_label_queue_is_listed(run: Run) -> None:
    wanted = {"id": "img/17", "app": "mnist", "run": "tall-fox", "row": {"city": "Vic"}, "guess": 3, "score": 0.75}
    server = Answers({"GET /labels": [wanted]})
    heads, row, after = run(server, "labels", "--app", "mnist").stdout.splitlines()
    assert heads.split() == "id application prediction score purpose run city".split()
    assert row.split() == ["img/17", "mnist", "3", "0.75", "-", "tall-fox", "Vic"]
    assert after.startswith("Label one: scanflow labels --give img/17=LABEL")
    assert after.endswith("/labels")
    asked = {"app": "mnist", "state": "wanted", "details": "true", "limit": "100"}
    assert server.asked == [("GET /labels", asked, None)]
    assert "These are the first 1." in run(server, "labels", "-n", "1").stdout
    assert json.loads(run(server, "labels", "--json").stdout) == [wanted]
    assert run({"GET /labels": []}, "labels").stdout == "No sample is waiting for a label.\n"


def test_what_people_disagree_on_is_listed_with_who_said_what(run: Run) -> None:
    votes = [{"by": "ada", "label": 7, "at": 1.0}, {"by": "bob", "label": 1, "at": 2.0}]
    server = Answers({"GET /labels": [{"id": "a", "app": "mnist", "label": 1, "votes": votes}]})
    lines = run(server, "labels", "--disagreements").stdout.splitlines()
    assert [line.split()[:5] for line in lines[1:3]] == [
        ["a", "mnist", "1", "ada", "7"],
        ["a", "mnist", "1", "bob", "1"],
    ]
    run(server, "labels", "--labelled", "-n", "5")
    asked = {"details": "true", "state": "given", "limit": "100"}
    assert [query for _, query, _ in server.asked] == [{**asked, "disputed": "true"}, {**asked, "limit": "5"}]


def test_labels_are_given_one_by_one_or_from_a_file_all_at_once(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text('\ufeffid,label,score\nimg/17,7,0.5\nb,007,0.4\nc, ,0.3\nd,"a, b",\n')
    server = Answers({"PATCH /labels": [{"id": str(number)} for number in range(5)]})
    words = ("labels", "--app", "mnist", "--team", "vision", "--from", str(file), "--give", "e=NaN", "-g", 'f={"x": 1}')
    output = run(server, *words).stdout
    assert output == "Labels given: 5; rows without a label: 1. List the remaining samples: scanflow labels\n"
    (place, _, body), (read, _, _) = server.asked
    assert read == "GET /labels"  # which is no answer here: what was given stays
    assert (place, body["app"], body["team"]) == ("PATCH /labels", "mnist", "vision")
    assert [(label["id"], label["label"], label.get("line")) for label in body["labels"]] == [
        ("img/17", 7, 2), ("b", "007", 3), ("d", "a, b", 5), ("e", "NaN", None), ("f", {"x": 1}, None),
    ]  # fmt: skip
    run(server, "labels", "--give", "a=7", "--replace")
    assert server.asked[-2][2] == {"labels": [{"id": "a", "label": 7}], "replace": True}


def test_a_label_that_was_mistyped_is_named_after_what_was_predicted_for_other_samples(run: Run) -> None:
    others = [{"id": id, "app": "mnist", "guess": guess} for id, guess in (("b", "late"), ("c", "on time"))]
    server = Answers({"PATCH /labels": [{**others[0], "id": "a", "label": "lat"}], "GET /labels": others})
    assert "Did you mean 'late'?" in run(server, "labels", "--give", "a=lat").stdout


def test_the_queue_goes_into_a_file_with_its_columns_names_which_comes_back_with_labels(
    run: Run, tmp_path: Path
) -> None:
    row = {"label": 1.5, "city": "=HYPERLINK(1)", "rooms": None}
    queue = [
        {"id": "r/0", "app": "a", "team": "", "guess": "b", "purpose": "evaluate", "row": row},
        {"id": "r/1", "app": "a", "team": "", "guess": 3, "purpose": "train"},
    ]
    file = tmp_path / "rows.csv"
    output = run({"GET /labels": queue}, "labels", "--export", str(file)).stdout
    assert output == f"{file}: 2 samples. Fill in its column 'label', then: scanflow labels --from {file}\n"
    assert "no file was written" in run({"GET /labels": []}, "labels", "--export", str(tmp_path / "none.csv")).stdout
    assert not (tmp_path / "none.csv").exists()
    text = file.read_text()
    assert text.splitlines() == [
        "id,row.label,city,rooms,guess,purpose,label",
        "r/0,1.5,'=HYPERLINK(1),,b,evaluate,",
        "r/1,,,,3,train,",
    ]
    with pytest.raises(InvalidError, match=r"may contain labels\. Name another file"):
        run({"GET /labels": queue}, "labels", "--export", str(file))
    file.write_text(text.replace("3,train,", "3,train,yes"))
    for written in (
        file.read_text(),
        file.read_text().replace(",", ";"),
        "\ufeff" + file.read_text().replace(",", "\t"),
    ):
        file.write_text(written)
        server = Answers({"PATCH /labels": [{"id": "r/1"}]})
        assert "Labels given: 1; rows without a label: 1." in run(server, "labels", "--from", str(file)).stdout
        assert server.asked[0][2] == {"labels": [{"id": "r/1", "label": "yes", "line": 3}]}


@pytest.mark.parametrize(
    ("file", "words", "message"),
    [
        (b"id,lable\n1,2\n", "--from labels.csv", "has no column 'label'"),
        (b"", "--from labels.csv", "'labels.csv' is empty"),
        (b"a,b\n1,2\n", "--from labels.csv", "has no column 'id'"),
        (b"id,label\n1,\xff\n", "--from labels.csv", "in UTF-8"),
        (b"id,label\na,1\n,2\nb,null\n", "--from labels.csv", "- line 3: it has a label but no id\n- line 4: the"),
        (b"", "--from none.csv", "There is no file 'none.csv'"),
        (b"", "--give 17", "Write it as ID=LABEL"),
        (b"", "--give a=1 --give b=null", "The label of 'b' is null"),
        (b"", "--replace", "--give ID=LABEL --replace"),
        (b"", "--give a=1 --export x.csv", "exclude each other"),
    ],
)
def test_labels_that_cannot_be_read_send_nothing(run: Run, folder: Path, file: bytes, words: str, message: str) -> None:
    (folder / "labels.csv").write_bytes(file)
    server = Answers({"PATCH /labels": []})
    with pytest.raises(UsageError, match=re.escape(message)):
        run(server, "labels", *words.split())
    assert server.asked == []
