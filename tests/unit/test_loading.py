"""The user's own files as modules, functions and applications."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import scanflow as sf
from scanflow import modules
from scanflow.app.application_files import dump_json, dump_yaml, load_yaml
from scanflow.app_files import get_file
from scanflow.application_loading import load_application, load_function, load_module
from scanflow.errors import InvalidError, NotFoundError, UsageError

APP = """
import scanflow as sf
train = sf.Executor(name="train", mainfile="train.py")
app = sf.Application(name="shop", workflows=[sf.Workflow(name="training", nodes=[train])])
"""
WORKFLOW = """
import scanflow as sf
train = sf.Executor(name="train", mainfile="train.py")
{name} = sf.Workflow(name="{name}", nodes=[train])
"""

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_python_file_gives_its_application(write: Write, tmp_path: Path) -> None:
    path = write("shop/app.py", APP)
    app, source, workflow = load_application("shop/app.py", folder=tmp_path)
    assert (app.name, app.app_dir, source, workflow) == ("shop", str(tmp_path / "shop"), path, None)


@pytest.mark.parametrize("target", [None, "", ".", "app.py", "app.py:", ":training", ".:training", "app.py:training"])
def test_a_target_may_leave_out_what_is_clear(write: Write, tmp_path: Path, target: str | None) -> None:
    write("app.py", APP)
    app, _, workflow = load_application(target, folder=tmp_path)
    assert app.name == "shop"
    assert workflow == ("training" if target is not None and target.endswith("training") else None)


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_a_file_of_text_gives_the_same_application(write: Write, tmp_path: Path, suffix: str) -> None:
    write("app.py", APP)
    app, _, _ = load_application("app.py", folder=tmp_path)
    write(f"other.{suffix}", "\ufeff" + (dump_json(app) if suffix == "json" else dump_yaml(app)))
    assert load_application(f"other.{suffix}", folder=tmp_path)[0] == app


def test_workflows_without_an_application_make_one_named_after_the_file(write: Write, tmp_path: Path) -> None:
    write("My Flows.py", WORKFLOW.format(name="a") + WORKFLOW.format(name="b") + "again = a\n")
    app, _, _ = load_application("My Flows.py", folder=tmp_path)
    assert app.name == "my-flows"
    assert [workflow.name for workflow in app.workflows] == ["a", "b"]


def test_a_relative_folder_is_relative_to_the_file(write: Write, tmp_path: Path) -> None:
    write("shop/app.py", APP.replace('name="shop"', 'name="shop", app_dir="../steps"'))
    assert load_application("shop/app.py", folder=tmp_path)[0].app_dir == str(tmp_path / "steps")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (None, "There is no app.py or scanflow.yaml in '{folder}'. Create one: scanflow init"),
        ("ap.py", "There is no file 'ap.py'. Did you mean 'apps.py'?"),
        ("nowhere/app.py", "There is no file 'nowhere/app.py'. Name another, or write an example: scanflow init"),
        ("empty.py", "empty.py makes no sf.Application and no sf.Workflow at its top level. See: scanflow init"),
    ],
)
def test_a_missing_target_says_what_to_do(write: Write, tmp_path: Path, target: str | None, message: str) -> None:
    write("apps.py", APP)
    write("empty.py", "x = 1\n")
    with pytest.raises(NotFoundError) as error:
        load_application(target, folder=tmp_path)
    assert str(error.value) == message.format(folder=tmp_path)


def test_a_file_with_two_applications_says_which(write: Write, tmp_path: Path) -> None:
    write("app.py", APP + 'other = app.replace(name="other")\n')
    with pytest.raises(UsageError, match=r"app.py makes 2 applications: shop, other. Keep one."):
        load_application(None, folder=tmp_path)


def test_a_mistake_in_the_description_is_reported_by_its_line(write: Write, tmp_path: Path) -> None:
    write("app.py", APP.replace('mainfile="train.py"', 'mainfile="train.py", retrys=3'))
    with pytest.raises(UsageError) as error:
        load_application(None, folder=tmp_path)
    assert str(error.value) == "app.py, line 3: Executor 'train' has no field 'retrys'. Did you mean 'retries'?"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n1 / 0\n", ["  app.py:2: 1 / 0", "  ZeroDivisionError: division by zero"]),
        ("def f(:\n", ["  app.py:1: def f(:", "  SyntaxError: invalid syntax"]),
        (
            "import no_such_module\n",
            ["  app.py:1: import no_such_module", "  ModuleNotFoundError: No module named 'no_such_module'"],
        ),
        ("import sys\nsys.exit('over')\n", ["  app.py:2: sys.exit('over')", "  SystemExit: over"]),
    ],
)
def test_a_file_that_fails_is_reported_by_its_own_frames(
    write: Write, tmp_path: Path, text: str, message: list[str]
) -> None:
    write("app.py", text)
    with pytest.raises(UsageError) as error:
        load_application(None, folder=tmp_path)
    lines = ["app.py cannot be loaded:", *message, "After a change, check it: scanflow check app.py"]
    assert str(error.value).splitlines() == lines


def test_a_file_of_text_that_is_wrong_is_reported_by_its_name(write: Write, tmp_path: Path) -> None:
    write("scanflow.yaml", "schema: scanflow/v9\nname: shop\n")
    with pytest.raises(InvalidError, match=r"^scanflow.yaml: This file has the schema 'scanflow/v9'"):
        load_application(None, folder=tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"schema: scanflow/v1\nname: caf\xe9\n")
    with pytest.raises(InvalidError, match=r"^latin.yaml: byte 29 is not UTF-8 text. Save the file as UTF-8."):
        load_application("latin.yaml", folder=tmp_path)


def test_a_module_is_run_once(write: Write) -> None:
    path = write("mine.py", "import itertools\nloaded = object()\n")
    assert load_module(path) is load_module(path)
    assert sys.modules["mine"] is load_module(path)


def test_a_module_finds_its_own_neighbours_and_not_those_of_another_folder(write: Write, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(f"{folder}/app.py", f"from helpers import x\nfrom parts.one import y\nwhere = {folder!r}\n")
        write(f"{folder}/helpers.py", f"x = {folder!r}\n")
        write(f"{folder}/parts/__init__.py", "")
        write(f"{folder}/parts/one.py", f"y = {folder!r}\n")
        write(f"{folder}/loop.py", "from app import where, x, y\n")
    for folder in ("a", "b", "a"):
        for name in ("app", "loop"):
            loaded = vars(load_module(tmp_path / folder / f"{name}.py"))
            assert [loaded[name] for name in ("where", "x", "y")] == [folder] * 3


FUNCTIONS = """
import datetime, decimal
import scanflow as sf
def plain(x: str | int, y: float = 1.0): return [x, y]
@sf.step
def decorated(day: datetime.date): return day.year
partial = lambda x: x
Decimal = decimal.Decimal
"""
NODES = """schema: scanflow/v1
name: text
workflows:
- name: wf
  nodes:
  - {kind: executor, name: a, function: "text_functions.py:plain", parameters: {x: "1"}}
  - {kind: executor, name: b, function: "text_functions.py:decorated", parameters: {day: "2024-01-01"}}
  - {kind: executor, name: c, function: "text_functions.py:plain", parameters: {x: {$from: item.k}}, for_each: [{k: 1}]}
  - {kind: executor, name: d, function: "text_functions.py:partial", parameters: {x: 1}}
  - {kind: executor, name: e, function: "text_functions.py:Decimal", parameters: {value: "1"}}
  - {kind: executor, name: f, function: "json:dumps", parameters: {obj: 1}}
  - {kind: executor, name: g, function: "__main__:of_a_notebook"}
  - {kind: executor, name: h, function: "0123abc.pickle:sent"}
"""


def test_steps_of_a_text_file_have_their_functions(write: Write, tmp_path: Path) -> None:
    write("text_functions.py", FUNCTIONS)
    write("app.yaml", NODES)
    workflow = load_application("app.yaml", folder=tmp_path)[0].workflow()
    bound = {node.name: node.target.call is not None for node in workflow.steps if node.target is not None}
    assert bound == {"a": True, "b": True, "c": True, "d": False, "e": False, "f": True, "g": False, "h": False}
    parsed = workflow.parse_parameters({"a.x": "08001", "a.y": "3", "b.day": "2024"})
    assert parsed == {"a.x": "08001", "a.y": 3, "b.day": "2024"}
    assert dump_yaml(load_application("app.yaml", folder=tmp_path)[0].replace(app_dir=".")) == dump_yaml(
        load_yaml(NODES).replace(app_dir=".")
    ), "what a step names stays a name"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (":plain", ":plian", "Step 'a': 'text_functions.py' has no 'plian'. Did you mean 'plain'?"),
        ('{x: "1"}', "{z: 1}", "Step 'a' has no parameter 'z'."),
        ('{x: "1"}', "{}", "Step 'a' needs the parameter 'x'."),
        ('{x: "1"}', "{x: [1]}", "Step 'a': the parameter 'x' is [1], which is not"),
        ("{k: 1}", "{j: 1}", "Step 'c': the item {'j': 1} has no 'k', which sf.item['k'] refers to."),
        ("{k: 1}", "{k: []}", "Step 'c': the parameter 'x' is [], which is not"),
        ("json:dumps", "json:dump_all", "Step 'f': 'json' has no 'dump_all'."),
    ],
)
def test_steps_of_a_text_file_are_checked_as_those_of_python(
    write: Write, tmp_path: Path, before: str, after: str, message: str
) -> None:
    write("text_functions.py", FUNCTIONS)
    write("app.yaml", NODES.replace(before, after, 1))
    with pytest.raises(UsageError) as raised:
        load_application("app.yaml", folder=tmp_path)
    assert str(raised.value).startswith(f"app.yaml: {message}")


def test_a_text_file_where_the_functions_cannot_be_loaded_says_why(write: Write, tmp_path: Path) -> None:
    nodes = NODES.replace("text_functions", "broken_functions")
    write("broken_functions.py", f"{FUNCTIONS}\n1 / 0")
    write("app.yaml", nodes)
    with pytest.raises(UsageError, match=r"broken_functions.py cannot be loaded:\n.*broken_functions.py:\d+: 1 / 0"):
        load_application("app.yaml", folder=tmp_path)
    write("broken_functions.py", "import a_package_of_the_image")
    node = load_application("app.yaml", folder=tmp_path)[0].workflow().steps[0]
    assert node.target is not None
    assert node.target.call is None, "it may be where the step runs"


@pytest.mark.parametrize("name", ["json", "scanflow", "yaml", "pytest"])
def test_a_file_hides_no_module_of_its_name(write: Write, name: str) -> None:
    before = importlib.import_module(name)
    module = load_module(write(f"{name}.py", "x = 1\n"))
    assert module is not before
    assert vars(module)["x"] == 1
    assert sys.modules[name] is before


def test_our_own_packages_stay_where_an_application_is_in_a_checkout_of_ours(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "user_folders", {Path(modules.__file__).parents[1]})
    before = sys.modules["scanflow"]
    load_module(write("scanflow.py", "x = 1\n"))
    assert sys.modules["scanflow"] is before


def test_a_module_that_fails_leaves_nothing_behind(write: Write) -> None:
    path = write("mine.py", "1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load_module(path)
    assert "mine" not in sys.modules
    path.write_text("x = 1  # of another length: what is compiled is kept by length and second\n")
    assert vars(load_module(path))["x"] == 1


def test_a_function_is_found_by_file_or_by_module(write: Write) -> None:
    path = write(
        "mine.py", "class Box:\n    @staticmethod\n    def open():\n        return 3\n\ndef f():\n    return 4\n"
    )
    assert load_function("mine.py:f", path)() == 4
    assert load_function("mine.py:Box.open", path)() == 3
    assert load_function("json:dumps", None)([1]) == "[1]"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("mine.py:trian", NotFoundError, "'mine.py' has no 'trian'. Did you mean 'train'?"),
        ("mine.py:train.x", NotFoundError, "'mine.py' has no 'train.x'."),
        ("mine.py:limit", InvalidError, "'mine.py:limit' is not a function."),
        ("no.such:f", NotFoundError, "The function 'no.such:f' cannot be found: No module named 'no'"),
    ],
)
def test_an_unknown_function_names_the_nearest(write: Write, name: str, error: type[Exception], message: str) -> None:
    path = write("mine.py", "def train(): ...\nlimit = 3\n")
    with pytest.raises(error) as raised:
        load_function(name, path if name.startswith("mine") else None)
    assert str(raised.value).startswith(message)


def test_a_file_is_looked_for_in_each_folder_in_order(write: Write, tmp_path: Path) -> None:
    write("b/x.py", "")
    assert get_file("x.py", [tmp_path / "a", tmp_path / "b"]) == tmp_path / "b" / "x.py"
    write("a/x.py", "")
    assert get_file("x.py", [tmp_path / "a", tmp_path / "b"]) == tmp_path / "a" / "x.py"
    (tmp_path / "a" / "folder.py").mkdir()
    with pytest.raises(NotFoundError) as error:
        get_file("xx.py", [tmp_path / "a", tmp_path / "b", tmp_path / "a"])
    assert str(error.value) == f"There is no file 'xx.py' in {tmp_path}/a, {tmp_path}/b. Did you mean 'x.py'?"
    with pytest.raises(NotFoundError, match=r"There is no file 'folder.py'"):
        get_file("folder.py", [tmp_path / "a"])


def test_an_application_that_is_imported_from_another_file_is_not_a_second_one(write: Write, tmp_path: Path) -> None:
    write("first_app.py", APP)
    own = "import scanflow as sf\nfrom first_app import app as first\n"
    write("second_app.py", own + "watched = sf.Application(name='second', workflows=first.workflows)\n")
    assert load_application("second_app.py", folder=tmp_path)[0].name == "second"
    write("third_app.py", own)
    assert load_application("third_app.py", folder=tmp_path)[0].name != "second"


def test_an_application_may_be_loaded_where_one_of_the_same_file_name_was(write: Write, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(f"{name}/app.py", APP.replace("shop", name))
    assert [load_application(f"{name}/app.py", folder=tmp_path)[0].name for name in ("one", "two", "one")] == [
        "one",
        "two",
        "one",
    ]
    assert isinstance(load_application("two", folder=tmp_path)[0], sf.Application)
