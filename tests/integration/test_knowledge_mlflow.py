"""What only the MLflow adapter promises: fresh homes, plain MLflow in steps, trackers that are down, killed writers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from scanflow.app.application import Application
from scanflow.errors import InvalidError, MissingExtraError, NotFoundError, UnavailableError, UsageError
from scanflow.installation import explain_install
from scanflow.knowledge import open_knowledge
from scanflow.knowledge.step_environment import add_run_tags, find_prepared_environment, locate_tracker
from tests.serving import reserve_port
from tests.waiting import patient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # the warnings are MLflow's
    pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed"),
]

TIMEOUT_S = patient(120)


def _python(
    code: str, *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None, quiet: bool = True
) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or not quiet
    return done.stdout.strip()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that two processes have prepared at the same time, for two environments."""
    home = tmp_path_factory.mktemp("hömé 数据")
    code = (
        "import sys; from pathlib import Path; from scanflow.knowledge import open_knowledge;"
        "sys.stdin.readline();"
        "print(open_knowledge(Path(sys.argv[1])).prepare('shop', sys.argv[2])['MLFLOW_EXPERIMENT_NAME'])"
    )
    command = [sys.executable, "-c", code, str(home)]
    racers = [
        subprocess.Popen(
            [*command, team], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for team in ("data", "data", "science")
    ]
    try:
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        outputs = [racer.communicate(timeout=TIMEOUT_S) for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
    assert [out.strip() for out, _ in outputs] == ["scanflow-shop-data", "scanflow-shop-data", "scanflow-shop-science"]
    assert [err for _, err in outputs] == ["", "", ""]
    return home


def test_processes_that_prepare_a_fresh_home_at_once_agree(home: Path) -> None:
    for team in ("data", "science"):
        environment = find_prepared_environment(home, "shop", team)
        assert environment is not None
        assert environment == open_knowledge(home).prepare("shop", team)
    assert [path.name for path in (home / "tracker").glob(".mlflow.db.new*")] == []
    code = (
        "import sys; from pathlib import Path; from scanflow.knowledge import open_knowledge;"
        "open_knowledge(Path(sys.argv[1])).prepare('shop', 'data'); print('mlflow' in sys.modules)"
    )
    assert _python(code, str(home)) == "False", "to prepare again loads no MLflow"


def test_a_run_has_ended_when_it_is_wholly_written(home: Path, tmp_path: Path) -> None:
    moments: list[datetime] = []

    def clock() -> datetime:
        moments.append(datetime(2026, 1, 31, 6, len(moments), tzinfo=UTC))
        return moments[-1]

    from scanflow.knowledge.mlflow.mlflow_knowledge import MlflowKnowledge

    knowledge = MlflowKnowledge(locate_tracker(home), clock=clock)
    (tmp_path / "plot.png").write_bytes(b"png")
    run = knowledge.log_run("shop", "data", metrics={"loss": 1.0}, artifacts=tmp_path / "plot.png")
    assert len(moments) > 1
    assert run.ended_at == moments[-1]


def test_plain_mlflow_in_a_step_logs_to_the_environment(home: Path, tmp_path: Path) -> None:
    knowledge = open_knowledge(home)
    parent = knowledge.log_run("shop", "data", name="workflow")
    tags = {"scanflow.step": "train", "mlflow.parentRunId": parent.run_id}
    code = (
        "import mlflow, pathlib\n"
        "with mlflow.start_run(run_name='fit'):\n"
        "    mlflow.log_param('depth', 3)\n"
        "    mlflow.log_metric('accuracy', 0.5)\n"
        "    mlflow.log_metric('accuracy', 0.97)\n"
        "    mlflow.log_text('hello', 'notes/läufe.txt')\n"
    )
    step = tmp_path / "step"
    step.mkdir()
    _python(code, env=add_run_tags(knowledge.prepare("shop", "data"), tags), cwd=step)
    (run,) = knowledge.search_runs("shop", "data", "tags.`scanflow.step` = 'train' and metrics.accuracy > 0.9")
    assert (run.name, run.status, run.parent) == ("fit", "finished", parent.run_id)
    assert run.params == {"depth": "3"}
    assert run.tags["scanflow.app"] == "shop"
    knowledge.fetch_run_artifacts(run.run_id, tmp_path / "out")
    assert (tmp_path / "out" / "notes" / "läufe.txt").read_text() == "hello"
    assert list(step.iterdir()) == []


def test_plain_mlflow_and_the_library_read_each_other_s_models(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    knowledge = open_knowledge(home)
    (tmp_path / "weights").write_text("1")
    registered = knowledge.register_model("plain", tmp_path / "weights", app="shop", team="data")
    code = (
        "import mlflow\n"
        "from sklearn.linear_model import LinearRegression\n"
        "model = LinearRegression().fit([[0], [1]], [0, 2])\n"
        "with mlflow.start_run():\n"
        "    mlflow.sklearn.log_model(model, name='d', registered_model_name='doubler', pip_requirements=['x'])\n"
    )
    environment = knowledge.prepare("shop", "data")
    _python(code, env=environment, cwd=tmp_path, quiet=False)
    knowledge.set_model_alias("doubler", "champion", 1)
    knowledge.fetch_model("doubler", tmp_path / "out", version="champion")
    assert (tmp_path / "out" / "MLmodel").is_file()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    from mlflow import artifacts, sklearn

    read = Path(artifacts.download_artifacts(registered.uri, dst_path=str(tmp_path / "plain")))
    assert [path.name for path in read.iterdir()] == ["weights"]
    model: Any = sklearn.load_model("models:/doubler@champion")
    assert model.predict([[4]])[0] == pytest.approx(8)


def test_what_killed_processes_had_not_finished_is_not_seen(home: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1")
    code = (
        "import os, signal, sys; from pathlib import Path; from scanflow.knowledge import open_knowledge\n"
        "from scanflow.app.application import Application; from mlflow import MlflowClient\n"
        "def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\n"
        "home, source, team = Path(sys.argv[1]), Path(sys.argv[2]), 'killed'\n"
        "for dies_at, save in (\n"
        "    ('set_terminated', lambda k: k.log_run('shop', team, params={'a': 1}, artifacts=source)),\n"
        "    ('set_terminated', lambda k: k.save_application(Application(name='shop', team=team))),\n"
        "    ('set_terminated', lambda k: k.save_artifacts('shop', team, 'data', source)),\n"
        "    ('create_model_version', lambda k: k.register_model('killed model', source, app='shop', team=team)),\n"
        "):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        setattr(MlflowClient, dies_at, die)\n"
        "        save(open_knowledge(home))\n"
        "        os._exit(0)\n"
        "    print(-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    ended = _python(code, str(home), str(tmp_path / "x"), quiet=False)
    assert ended.split() == [str(int(signal.SIGKILL))] * 4
    knowledge = open_knowledge(home)
    assert knowledge.search_runs("shop", "killed") == []
    with pytest.raises(NotFoundError, match="never saved"):
        knowledge.get_application("shop", "killed")
    with pytest.raises(NotFoundError, match="no artifacts"):
        knowledge.fetch_artifacts("shop", "killed", "data", tmp_path / "out")
    with pytest.raises(NotFoundError, match="no model"):
        knowledge.get_model("killed model")
    assert not (tmp_path / "out").exists()


def test_a_database_that_fails_is_unavailable_and_a_save_that_fails_leaves_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient
    from sqlalchemy.exc import OperationalError

    def raise_locked(*_: object, **__: object) -> None:
        raise OperationalError("SELECT", {}, Exception("database is locked"))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    knowledge = open_knowledge(home)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "get_registered_model", raise_locked)
        with pytest.raises(UnavailableError, match="database is locked"):
            knowledge.get_model("plain")
        patch.setattr(MlflowClient, "log_artifact", full)
        with pytest.raises(UnavailableError, match="No space left"):
            knowledge.save_application(Application(name="shop", team="full"))
        with pytest.raises(UnavailableError, match="No space left"):
            knowledge.log_run("shop", "full", artifacts=Path(__file__))
    assert knowledge.search_runs("shop", "full") == []
    with pytest.raises(NotFoundError):
        knowledge.get_application("shop", "full")


@pytest.mark.parametrize(("first", "waits_s"), [(URLError(TimeoutError()), [2.0, 2.0]), (TimeoutError(), [2.0, 30.0])])
def test_a_connection_that_leads_nowhere_is_tried_again_and_a_slow_answer_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: OSError, waits_s: list[float]
) -> None:
    outcomes, waited = [first, URLError(ConnectionRefusedError("refused"))], list[float]()

    def urlopen(_: str, *, timeout: float) -> None:
        waited.append(timeout)
        raise outcomes.pop(0)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(UnavailableError, match="refused"):
        open_knowledge(tmp_path, "http://127.0.0.1:9", connect_timeout_s=30).search_runs("shop", "data")
    assert waited == waits_s


@pytest.fixture
def closed_port() -> Iterator[int]:
    with reserve_port() as port:
        yield port


def test_a_server_that_is_down_or_hangs_is_unavailable_before_mlflow_calls_it(
    tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow tries for minutes before it gives up: it is not asked where nobody answers."""
    import requests

    asked: list[object] = []
    with monkeypatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as silent:  # which never says a word
        patch.setattr(requests.Session, "request", lambda *arguments, **_: asked.append(arguments))
        knowledge = open_knowledge(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", connect_timeout_s=0.3)
        with pytest.raises(UnavailableError, match="timed out"):
            knowledge.search_runs("shop", "data")
        knowledge = open_knowledge(tmp_path, f"http://user:secret@127.0.0.1:{closed_port}")
        with pytest.raises(UnavailableError, match=r"does not answer: .*Connection refused.*try again") as caught:
            knowledge.get_model("mnist")
    assert asked == []
    assert "secret" not in str(caught.value)
    with pytest.raises(UnavailableError):
        knowledge.prepare("shop", "data")
    assert find_prepared_environment(tmp_path, "shop", "data", tracker_uri=f"http://127.0.0.1:{closed_port}") is None
    with pytest.raises(UnavailableError, match=r"postgresql://\*\*\*@127"):
        open_knowledge(tmp_path, f"postgresql://me:secret@127.0.0.1:{closed_port}/db").get_run("r")


def test_a_place_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "tracker").mkdir()
    (tmp_path / "tracker" / "mlflow.db").write_bytes(b"these are not the bytes of a database" * 100)
    with pytest.raises(UsageError, match=r"is not a tracker's database.*Move it away"):
        open_knowledge(tmp_path).get_run("r")
    (tmp_path / "home").write_text("a file in the way")
    with pytest.raises(UnavailableError, match="choose another home"):
        open_knowledge(tmp_path / "home").prepare("shop", "data")


def test_a_database_of_another_mlflow_says_how_to_upgrade_it(home: Path, tmp_path: Path) -> None:
    (tmp_path / "tracker").mkdir()
    database = shutil.copy(home / "tracker" / "mlflow.db", tmp_path / "tracker")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'cfd24bdc0731'")
        connection.commit()
    with pytest.raises(UsageError, match="mlflow db upgrade 'sqlite:///"):
        open_knowledge(tmp_path).prepare("shop", "data")


def test_a_name_that_no_model_has_says_where_the_names_are(home: Path) -> None:
    with pytest.raises(InvalidError, match=r"Invalid model name 'app.py:nothere'.* See the models: scanflow models"):
        open_knowledge(home).list_model_versions("app.py:nothere")


def test_a_deleted_experiment_says_how_to_bring_it_back(home: Path) -> None:
    from mlflow import MlflowClient

    knowledge = open_knowledge(home)
    variables = knowledge.prepare("shop", "gone")
    MlflowClient(variables["MLFLOW_TRACKING_URI"]).delete_experiment(variables["MLFLOW_EXPERIMENT_ID"])
    with pytest.raises(
        UsageError, match=f"mlflow experiments restore --experiment-id {variables['MLFLOW_EXPERIMENT_ID']}"
    ):
        knowledge.prepare("shop", "gone")
    assert knowledge.search_runs("shop", "gone") == []


def test_threads_may_log_at_once(home: Path) -> None:
    knowledge = open_knowledge(home)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: knowledge.log_run("shop", "threads", name=f"n{number}"), range(8)))
    assert {run.name for run in knowledge.search_runs("shop", "threads")} == {f"n{number}" for number in range(8)}


def test_without_mlflow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(
        MissingExtraError, match=re.escape(f"MLflow, which is not installed. {explain_install('local')}")
    ):
        open_knowledge(tmp_path)


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_home_that_was_moved_keeps_its_models_and_artifacts(tmp_path: Path, *, is_copy: bool) -> None:
    before, now = tmp_path / "before", tmp_path / "nöw"
    (source := tmp_path / "model").mkdir()
    (source / "MLmodel").write_text("flavors: {}")
    knowledge = open_knowledge(before)
    variables = knowledge.prepare("shop", "data")
    knowledge.save_artifacts("shop", "data", "picture", source)
    knowledge.register_model("digits", source, app="shop", team="data")
    log = (
        "import mlflow; mlflow.start_run(); mlflow.log_text('mine', 'own.txt'); print(mlflow.active_run().info.run_id)"
    )
    run = _python(log, env=variables, quiet=False).splitlines()[-1]
    if is_copy:
        shutil.copytree(before, now)
        # Whatever still points there finds something else.
        for file in (before / "tracker" / "artifacts").rglob("*"):
            if file.is_file():
                file.write_text("another home's")
    else:
        before.rename(now)
    moved = open_knowledge(now)
    for fetched in (
        moved.fetch_artifacts("shop", "data", "picture", tmp_path / "a") / "MLmodel",
        moved.fetch_model("digits", tmp_path / "b") / "MLmodel",
    ):
        assert fetched.read_text() == "flavors: {}"
    assert (moved.fetch_run_artifacts(run, tmp_path / "c") / "own.txt").read_text() == "mine"
    run = _python(log, env=moved.prepare("shop", "data"), quiet=False).splitlines()[-1]
    assert list((now / "tracker" / "artifacts").rglob(f"{run}/artifacts/own.txt")), "what is new is here as well"
    with closing(sqlite3.connect(now / "tracker" / "mlflow.db")) as database:
        dump = "\n".join(database.iterdump())
    assert str(before) not in dump
