"""What a server gives of steps' outputs: exact values for our client, JSON for others, and no code of theirs is run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.app.application import Application
from scanflow.backends.memory import Memory
from scanflow.backends.output_files import OutputFilesReader, dump_output_files, parse_output_files
from scanflow.backends.pickles import add_signature, dump_pickle
from scanflow.backends.values import Outputs, write_result
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.errors import InvalidError, TooLargeError, UnavailableError, UsageError
from scanflow.reports.output_views import build_output_view
from scanflow.settings import Settings
from scanflow_server.output_values import dump_values, show_outputs
from scanflow_server.run_reader import RunReader

KEY = b"k" * 32
VALUE = {"pair": (1, 2), "nested": [{3}, b"x"]}


class Loaded:
    """Sets a variable of the environment where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.putenv, ("LOADED", "1")


class Context:
    """The part of a server's context that outputs are read of."""

    def __init__(self, deployer: EmbeddedDeployer) -> None:
        self.deployer = deployer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "step"


def write(folder: Path, value: Any) -> Path:
    write_result(value, folder, KEY)
    return folder


def read(folder: Path) -> Any:
    return OutputFilesReader().read(folder, KEY)


def test_outputs_that_name_no_pickle_are_parsed_once_to_be_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, parsed = json.loads, list[str]()

    def record_and_parse(text: str) -> Any:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr("scanflow.backends.values.json.loads", record_and_parse)
    assert show_outputs(read(write(folder, [0.5, 0.25]))) == {"result": [0.5, 0.25]}
    assert parsed == ["[0.5, 0.25]"]


def test_a_pickle_is_found_by_a_name_that_a_program_escaped(folder: Path) -> None:
    write(folder, VALUE)
    (folder / ".outputs" / "result").write_text(r'{"\u0024pi\u0063kle": ".0.pickle"}')
    assert read(folder).load() == {"result": VALUE}


def test_sent_outputs_are_what_they_are_where_they_lie(folder: Path, tmp_path: Path) -> None:
    write(folder, VALUE)
    (folder / ".outputs" / "said").write_text("good\n")
    (folder / ".outputs" / "file").write_text('{"$path": "model.bin"}')
    (folder / ".outputs" / "looks").write_text('{"$value": {"$pickle": ".0.pickle"}}')
    received, app_dir = parse_output_files(b"".join(dump_output_files(read(folder), str(tmp_path))))
    assert not isinstance(received, list)
    assert received.load() == dict(Outputs(folder, KEY))
    assert received.load()["file"] == folder / "model.bin"
    assert app_dir == str(tmp_path)


def test_a_fan_out_is_sent_in_order_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    tasks = [read(write(tmp_path / str(number), (number,))) for number in range(3)]
    for sent in (tasks, []):
        received, _ = parse_output_files(b"".join(dump_output_files(list(sent), "")))
        assert isinstance(received, list)
        assert [task.load()["result"] for task in received] == [(number,) for number in range(len(sent))]


def test_no_value_is_loaded_before_its_reader_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was loaded")

    write(folder, Loaded())
    monkeypatch.setattr("scanflow.backends.pickles.load_pickle", refuse)
    monkeypatch.setattr("scanflow.backends.output_files.load_pickle", refuse)
    files = read(folder)
    size = len(dump_pickle(Loaded()))
    shown = f"<a Python value, {size} bytes pickled: read it with sf.Client(...).output(...), or scanflow output>"
    assert show_outputs([files]) == [{"result": shown}]
    with pytest.raises(AssertionError, match="was loaded"):
        files.load()


def test_a_pickle_that_no_run_of_the_home_signed_is_not_sent(folder: Path) -> None:
    write(folder, VALUE)
    (folder / ".outputs" / ".0.pickle").write_bytes(b"\0" * 32 + dump_pickle(VALUE))
    with pytest.raises(InvalidError, match="was not signed"):
        read(folder)


def test_a_class_that_is_not_here_is_named_with_what_to_do(folder: Path) -> None:
    (folder / ".outputs").mkdir(parents=True)
    (folder / ".outputs" / "result").write_text('{"$pickle": ".0.pickle"}')
    (folder / ".outputs" / ".0.pickle").write_bytes(add_signature(b"cnowhere_shapes\nCircle\n.", KEY))
    with pytest.raises(InvalidError, match=r"No module named 'nowhere_shapes'.*Put that folder on the path"):
        read(folder).load()


def test_more_than_is_sent_is_refused_and_says_where_to_read_it(tmp_path: Path) -> None:
    folders = [write(tmp_path / str(number), bytes(600)) for number in range(2)]
    reader = OutputFilesReader(max_bytes=1024)
    reader.read(folders[0], KEY)
    with pytest.raises(TooLargeError, match=r"Read them where the run's home is: sf\.Client\(\)\.output"):
        reader.read(folders[1], KEY)


def test_what_was_cut_off_on_its_way_is_no_output(folder: Path) -> None:
    sent = b"".join(dump_output_files(read(write(folder, VALUE)), ""))
    for part in (sent[:-1], sent[:20], b""):
        with pytest.raises(UnavailableError, match="only a part of the outputs"):
            parse_output_files(part)


def test_values_of_json_are_shown_as_they_are(folder: Path) -> None:
    write(folder, {"a": [1, 1.5, None, True], "b": float("inf")})
    (folder / ".outputs" / "file").write_text('{"$path": "model.bin"}')
    shown = {"result": {"a": [1, 1.5, None, True], "b": "inf"}, "file": str(folder / "model.bin")}
    assert show_outputs(read(folder)) == shown


def make_application(step: Callable[[], Any]) -> Application:
    node = sf.Executor(name="give", function=f"{__name__}:{step.__name__}", env={"SERVICE_KEY": "s3cret-of-the-app"})
    return sf.Application(name="values", workflows=[sf.Workflow(name="w", nodes=[node])])


def give_values() -> Any:
    return VALUE


def give_named_secret() -> Any:
    return {"accuracy": 0.9, "password": "anything"}


def give_no_numbers() -> Any:
    return [{"a": float("nan"), "text": "nan"}, [float("-inf")]]


def give_secret() -> Any:
    return ["s3cret-of-the-app"]


def give_pickled_secret() -> Any:
    return ("s3cret-of-the-app", 1)


def test_a_client_reads_of_what_the_server_sends_what_the_step_returned(settings: Settings) -> None:
    deployer = EmbeddedDeployer(settings, backend=Memory(settings))
    run = deployer.run(RunRequest(make_application(give_values)))
    received, _ = parse_output_files(b"".join(dump_values(Context(deployer), run.name, "give")))  # type: ignore[arg-type]
    assert not isinstance(received, list)
    assert received.load() == {"result": VALUE}


@pytest.mark.parametrize("step", [give_named_secret, give_secret, give_pickled_secret])
def test_outputs_that_hold_a_secret_are_refused_rather_than_changed(settings: Settings, step: Any) -> None:
    deployer = EmbeddedDeployer(settings, backend=Memory(settings))
    run = deployer.run(RunRequest(make_application(step)))
    with pytest.raises(UsageError, match=f"scanflow output {run.name} give"):
        dump_values(Context(deployer), run.name, "give")  # type: ignore[arg-type]


def test_a_page_shows_numbers_that_json_has_not_as_numbers(settings: Settings) -> None:
    deployer = EmbeddedDeployer(settings, backend=Memory(settings))
    run = deployer.run(RunRequest(make_application(give_no_numbers)))
    (value,) = RunReader(Context(deployer), run).read_outputs("give").values()  # type: ignore[arg-type]
    assert build_output_view("result", value).line == '[{"a": NaN, "text": "nan"}, [-Infinity]]'
