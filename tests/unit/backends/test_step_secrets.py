"""What a step with secrets is started with, and what its cache key is made of."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import scanflow as sf
from scanflow.app.plain_secrets import list_inherited_sources
from scanflow.backends import secret_process
from scanflow.backends.local.batch.launch import Launcher
from scanflow.backends.local.batch.step_programs import StepPrograms
from scanflow.backends.local.layout import Home, RunFolder
from scanflow.backends.parameter_secrets import take_secrets
from scanflow.backends.placed_secrets import place_secrets
from scanflow.backends.run_definition import RunDefinition
from scanflow.errors import InvalidError
from scanflow.files.secret_sources import read_secret_source
from scanflow.names import StepName
from tests.waiting import patient

KEY = sf.secret("env:KEY")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("KEY", "canary-key-1")
    return "canary-key-1"


def make_launcher(folder: Path, app: sf.Application, variables: Mapping[str, str] | None = None) -> Launcher:
    (folder / "a.py").write_text("print(1)")
    run = RunFolder(folder / "run")
    run.path.mkdir(exist_ok=True)
    definition = RunDefinition(app.replace(app_dir=str(folder)), app.workflows[0])
    programs = StepPrograms(definition, Home(folder / "home"))
    return Launcher(programs, run, max_fan_out=10, tracking=lambda _: dict(variables or {}))


def make_app(node: sf.Executor, **more: Any) -> sf.Application:
    return sf.Application(name="a", workflows=[sf.Workflow(name="w", nodes=[node])], **more)


def prepare(launcher: Launcher, node: sf.Executor) -> dict[str, Any]:
    """Return the command of a step's process, once what is written for it was searched for the secret."""
    parameters = launcher.inputs.resolve_parameters(node)
    folder = launcher.prepare(node, StepName(node.name), 1, parameters, devices={})
    texts = {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}
    assert [name for name, text in texts.items() if "canary" in text] == []
    spec: dict[str, Any] = json.loads(texts["spec.json"])
    return spec


def test_what_is_written_for_a_step_has_references_only(tmp_path: Path) -> None:
    node = sf.Executor(name="a", mainfile="a.py", parameters={"key": KEY, "n": 1}, env={"K": KEY, "MODE": "x"})
    spec = prepare(make_launcher(tmp_path, make_app(node)), node)
    assert spec["argv"][1:4] == ["-P", "-m", "scanflow.backends.secret_process"]
    assert (spec["env"]["MODE"], "K" in spec["env"]) == ("x", False)


def test_a_trackers_address_that_is_a_secret_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "http://ada:canary-pass-2@localhost:5000"
    monkeypatch.setenv("TRACKER", f"{address}/")
    node = sf.Executor(name="a", mainfile="a.py")
    app = make_app(node, tracker=sf.Tracker(uri=sf.secret("env:TRACKER")))
    variables = {"MLFLOW_TRACKING_URI": address, "MLFLOW_EXPERIMENT_NAME": "e"}
    spec = prepare(make_launcher(tmp_path, app, variables), node)
    assert (spec["env"]["MLFLOW_EXPERIMENT_NAME"], "MLFLOW_TRACKING_URI" in spec["env"]) == ("e", False)
    request = json.loads((tmp_path / "run").glob("**/secrets.json").__next__().read_text())
    assert request["variables"] == {"MLFLOW_TRACKING_URI": "env:TRACKER"}


def compute_key(folder: Path, node: sf.Executor) -> str:
    launcher = make_launcher(folder, make_app(node))
    parameters = launcher.inputs.resolve_parameters(node)
    return launcher.keys.compute(node, parameters).text


def test_a_cache_key_depends_on_the_reference_and_not_on_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = sf.Executor(name="a", mainfile="a.py", cache=True, parameters={"deep": [{"key": KEY}]}, env={"K": KEY})
    before = compute_key(tmp_path, node)
    monkeypatch.setenv("KEY", "another value")
    assert compute_key(tmp_path, node) == before
    other = sf.secret("env:OTHER")
    assert compute_key(tmp_path, node.replace(env={"K": other})) != before
    assert compute_key(tmp_path, node.replace(parameters={"deep": [{"key": other}]})) != before
    assert compute_key(tmp_path, node.replace(parameters={"deep": [{"key": None}]})) != before


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        (sf.secret("env:MISSING"), "Set the variable MISSING"),
        (sf.secret("file:missing.txt"), "cannot be read: No such file"),
        (sf.secret("file:empty.txt"), "There is no secret in 'file:empty.txt'"),
        (sf.secret("file:binary"), "is not text"),
        (sf.secret("k8s:api/key"), "on the backend 'kubernetes' only"),
    ],
)
def test_a_reference_that_leads_to_nothing_is_refused_at_the_check(tmp_path: Path, secret: sf.Secret, why: str) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    choices: list[dict[str, Any]] = [{"env": {"K": secret}}, {"parameters": {"deep": [secret]}}]
    for fields in choices:
        with pytest.raises(InvalidError, match=f"^Executor 'a'.*{why}"):
            make_launcher(tmp_path, make_app(sf.Executor(name="a", mainfile="a.py", **fields))).programs.check()


def test_all_variables_that_an_application_refers_to_are_masked_in_its_steps() -> None:
    app = make_app(
        sf.Executor(name="a", mainfile="a.py", parameters={"key": KEY}),
        agents=[sf.Agent(name="g", modules=["g.py"], parameters={"chat": sf.secret("env:CHAT")})],
        notify=[sf.Webhook(url="env:HOOK", secret="file:sign")],
        tracker=sf.Tracker(uri="env:TRACKER"),
    )
    assert list_inherited_sources(app) == ["env:CHAT", "env:HOOK", "env:KEY", "env:TRACKER"]


def test_a_reference_that_a_step_computed_stays_data() -> None:
    computed = {"$secret": "env:KEY"}
    assert take_secrets({"from": computed}) == ({"from": computed}, [])
    rest, places = take_secrets({"from": computed, "own": [1, KEY]})
    assert place_secrets(rest, places, {"env:KEY": "v"}) == {"from": computed, "own": [1, "v"]}


def test_a_secret_that_is_split_between_two_blocks_of_an_output_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCANFLOW_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setattr(secret_process, "BLOCK_BYTES", 10)
    (tmp_path / ".outputs").mkdir()
    (tmp_path / ".outputs" / "result").write_text('"0123canary-key-1"')
    assert secret_process.check_outputs({"env:KEY": "canary-key-1"}) == 1
    assert "The output 'result' holds the secret 'env:KEY'" in capfd.readouterr().err
    assert not (tmp_path / ".outputs").exists()


def write_output_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    "name", [".outputs/metric-{}", "model-{}.bin", "of-{}/model.bin", "a/b/{}", "{}", "a/of-Y2FuYXJ5LWtleS0x.bin"]
)
def test_a_secret_in_the_name_of_an_output_is_refused_and_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("SCANFLOW_OUTPUT_DIR", str(tmp_path))
    write_output_files(tmp_path, {name.format("canary-key-1"): "1", "plain.bin": "", ".outputs/metric": "2"})
    assert secret_process.check_outputs({"env:OTHER": "canary-other-2", "env:KEY": "canary-key-1"}) == 1
    refusal = capfd.readouterr().err
    assert ("canary" in refusal, "Y2FuYXJ5" in refusal, refusal.count("\n")) == (False, False, 1)
    assert "has the secret 'env:KEY' in its name, and outputs are kept and shown. Give the reference" in refusal
    paths = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert paths == {"plain.bin", ".outputs/metric"}


def test_what_a_step_writes_into_its_own_files_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANFLOW_OUTPUT_DIR", str(tmp_path))
    write_output_files(tmp_path, {"a/model.bin": "canary-key-1", ".outputs/metric": "our-project-1"})
    account = json.dumps({"project_id": "our-project-1", "private_key": "canary-key-3"})
    assert secret_process.check_outputs({"env:KEY": "canary-key-1", "file:sa.json": account}) == 0
    write_output_files(tmp_path, {".outputs/metric": "canary-key-3"})
    assert secret_process.check_outputs({"file:sa.json": account}) == 1


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkfifo, "a FIFO"), (Path.mkdir, "a folder"), (make_socket, "a socket"), (make_device, "a device")],
)
def test_a_reference_to_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket has an end
    make(Path("secret"))
    assert refuse() == (
        f"The secret in 'file:secret' cannot be read: it is {kind}, and no regular file. Write it into 'secret'."
    )


def refuse() -> str:
    """Return why a reference is refused, read in a thread: that one, and not the suite, waits where this fails."""
    refusals = list[str]()

    def read() -> None:
        try:
            read_secret_source("file:secret", Path())
        except InvalidError as error:
            refusals.append(str(error))

    reading = Thread(target=read, daemon=True)
    reading.start()
    reading.join(patient(5))
    return "".join(refusals)


def test_a_fifo_that_takes_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "regular").touch()
    regular = (tmp_path / "regular").stat()
    os.mkfifo(tmp_path / "secret")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as before:
        before.setattr(Path, "stat", lambda *_, **__: regular)
        assert "it is a FIFO" in refuse()


def test_a_link_to_a_file_with_a_secret_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("canary-key-1\n")
    (tmp_path / "link").symlink_to("file")
    assert read_secret_source("file:link", tmp_path) == "canary-key-1"
