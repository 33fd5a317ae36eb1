"""Applications as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.application_files import SCHEMA, dump_json, dump_yaml, load_json, load_yaml
from scanflow.app.yaml_text import read_yaml
from scanflow.errors import InvalidError
from tests.unit.app.app_builders import applications, batch, message, plain_values, script, shop

Dump = Callable[[sf.Application], str]
Load = Callable[[str], sf.Application]
FORMATS = [pytest.param(dump_yaml, load_yaml, id="yaml"), pytest.param(dump_json, load_json, id="json")]
HEAD = f"schema: {SCHEMA}\nname: shop\n"
STEP = "workflows:\n- name: w\n  nodes:\n  - {kind: executor, name: train, mainfile: train.py, %s}\n"


@given(applications())
def test_an_application_survives_being_written_and_read_and_both_formats_say_the_same(app: sf.Application) -> None:
    as_yaml, as_json = dump_yaml(app), dump_json(app)
    again = load_yaml(as_yaml)
    assert again == load_json(as_json) == app
    assert yaml.safe_load(as_yaml) == json.loads(as_json)
    assert dump_yaml(again) == as_yaml


@pytest.mark.parametrize(("dump", "load"), FORMATS)
@given(value=plain_values)
def test_any_plain_parameter_comes_back_as_the_same_type(dump: Dump, load: Load, value: Any) -> None:
    app = shop(batch(script("train", parameters={"p": value})))
    parameter = load(dump(app)).workflow().steps[0].parameters["p"]
    assert parameter == value
    assert type(parameter) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, text) for text in "NO yes off 12:30 2026-01-31 1_000 0b11 = tRUE nUll".split()),
        *(
            ("08", 8),
            ("0o17", 15),
            ("0x1F", 31),
            ("+12", 12),
            ("1e-3", 0.001),
            (".5", 0.5),
            ("1.", 1.0),
            ("-.5E+1", -5.0),
        ),
        *(("True", True), ("FALSE", False), ("~", None), ("", None), ('"1"', "1")),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    read = read_yaml(f"x: {text}\n")["x"]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [*"yes null ~ 1e3 0x1f 2026-01-31 1:30 = << # &a *a !t { %".split(), " x ", "a\n b\n\n", "\ufeff", "\x85", "- a"],
)
def test_a_text_that_yaml_could_take_for_something_else_stays_that_text(text: str) -> None:
    app = shop(batch(script("train", parameters={"p": text, "q": {text: [text]}})))
    assert load_yaml(dump_yaml(app)) == app


@pytest.mark.parametrize(("dump", "load"), FORMATS)
def test_the_schema_stands_first_and_what_is_default_is_left_out(dump: Dump, load: Load) -> None:
    text = dump(shop(batch(script("train"))))
    document = yaml.safe_load(text)
    assert list(document) == ["schema", "name", "workflows"]
    assert document["workflows"] == [
        {"name": "training", "nodes": [{"kind": "executor", "name": "train", "mainfile": "train.py"}]}
    ]


@given(st.none() | st.integers() | st.text("/abv12", max_size=12) | st.lists(st.just("scanflow/v1"), max_size=2))
def test_any_other_schema_is_refused(schema: Any) -> None:
    for load in (load_yaml, load_json):
        with pytest.raises(InvalidError) as error:
            load(json.dumps({"schema": schema, "name": "shop"}))
        assert message(error).endswith(f"this version of scanflow reads '{SCHEMA}'. Write 'schema: {SCHEMA}'.")


@pytest.mark.parametrize("text", ["", "null", "shop", "[]", "3", "!!set {schema}", "- schema: scanflow/v1"])
def test_what_is_no_mapping_says_what_an_application_is(text: str) -> None:
    with pytest.raises(
        InvalidError, match=f"An application is a mapping that begins with 'schema: {SCHEMA}'; this is "
    ):
        load_yaml(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name: shop\n", "This file has no 'schema'"),
        (HEAD + "name: other\n", "Line 3 has the key 'name' for the second time. Keep one of the two."),
        (HEAD + "tracker: {port: 1, uri: x, port: 2}\n", "Line 3 has the key 'port' for the second time."),
        (HEAD + "team: &a [*a]\n", "An alias (*name) refers to the value that contains it"),
        (HEAD + "---\n" + HEAD, "This is not YAML: expected a single document"),
        (HEAD + "\tteam: x\n", "This is not YAML: "),
        (HEAD + "team: [\n", "This is not YAML: "),
        (HEAD + "? [a]\n: b\n", "This is not YAML: "),
        (HEAD + "team: *nothing\n", "This is not YAML: found undefined alias"),
        (HEAD + "team: \x00\n", "This is not YAML: "),
        (HEAD + "team: !!python/object/apply:os.getcwd []\n", "This is not YAML: could not determine a constructor"),
        (HEAD + "team: true\n", "team cannot be True: it should be text (in a file, put it in quotes)."),
        (HEAD + "team: 3\n", "Application 'shop': team cannot be 3: it should be text (in a file, put it in quotes)."),
        (HEAD + "team: !!timestamp 2026-01-31\n", "team cannot be datetime.date(2026, 1, 31): it should be text"),
        (HEAD + "3: 4\n", "Application 'shop' has no field '3'."),
        (HEAD + "workflow: []\n", "Application 'shop' has no field 'workflow'. Did you mean 'workflows'?"),
        (HEAD + "workflows: {}\n", "Application 'shop': workflows cannot be {}: it should be a list."),
        (HEAD + STEP % "parameters: {when: !!timestamp 2026-01-31}", "the parameter 'when' is a date, which cannot"),
        (HEAD + STEP % "parameters: {p: .nan}", "the parameter 'p' is nan, which JSON cannot represent"),
        (HEAD + STEP % "parameters: {p: !!binary aGk=}", "the parameter 'p' is a bytes, which cannot"),
        (HEAD + STEP % "parameters: {p: {1: a, '1': b}}", "has the key '1' twice, as text and as a number"),
        (HEAD + STEP % "mainfil: x", "Executor 'train' has no field 'mainfil'. Did you mean 'mainfile'?"),
        (HEAD + STEP % "env: {A: true}", "env.A cannot be True: it should be text (in a file, put it in quotes)."),
        (HEAD + STEP % "env: {A: 1, A: 2}", "Line 6 has the key 'A' for the second time."),
        (HEAD + STEP % "timeout: 5 minutes", "Executor 'train': timeout '5 minutes' has the unknown unit 'minutes'."),
        (HEAD + STEP % "edges: []", "Executor 'train' has no field 'edges'."),
    ],
)
def test_a_wrong_file_says_what_and_where(text: str, reason: str) -> None:
    with pytest.raises(InvalidError) as error:
        load_yaml(text)
    assert reason in message(error)
    assert len(message(error)) < 500


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "This is not JSON: "),
        ("{", "This is not JSON: "),
        ('{"schema": "scanflow/v1", "name": "a", "name": "b"}', "An object has the key 'name' twice. Keep one of the"),
        ('{"schema": "scanflow/v1", "name": "a", "tracker": {"port": NaN}}', "port cannot be nan"),
        ("[" * 100_000, "nested too deeply for an application"),
        ("NaN", "this is nan"),
    ],
)
def test_a_wrong_json_file_says_what(text: str, reason: str) -> None:
    with pytest.raises(InvalidError) as error:
        load_json(text)
    assert reason in message(error)
    assert len(message(error)) < 300


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "{a: " * 50_000, "- " * 50_000, "? " * 50_000], ids=["[", "{", "-", "?"]
)
def test_yaml_that_is_nested_without_end_is_refused_and_harms_nobody(text: str) -> None:
    with pytest.raises(InvalidError, match="nested more than 100 levels deep"):
        load_yaml(text)


def test_aliases_that_multiply_without_end_are_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{index}: &a{index} [{', '.join([f'*a{index - 1}'] * 10)}]" for index in range(1, 30)]
    with pytest.raises(InvalidError, match=r"aliases .* expand to more than 10,000,000 values"):
        load_yaml(HEAD + "\n".join(lines))


def test_anchors_and_merged_mappings_are_read_as_yaml_defines_them() -> None:
    text = HEAD + (
        "workflows:\n- name: w\n  nodes:\n"
        "  - &a {kind: executor, name: a, mainfile: m.py, parameters: &p {epochs: 1, lr: 0.1}}\n"
        "  - {<<: *a, name: b, parameters: {<<: *p, epochs: 2}}\n"
    )
    steps = load_yaml(text).workflow().steps
    assert [(step.name, step.parameters) for step in steps] == [
        ("a", {"epochs": 1, "lr": 0.1}),
        ("b", {"epochs": 2, "lr": 0.1}),
    ]


def test_one_value_in_two_places_is_written_twice_rather_than_with_an_anchor() -> None:
    shared = {"layers": [1, 2]}
    text = dump_yaml(shop(batch(script("a", parameters=shared), script("b", parameters=shared))))
    assert "&" not in text
    assert text.count("layers") == 2


def test_live_functions_are_written_by_their_names() -> None:
    @sf.step
    def train(epochs: int) -> None: ...

    app = shop(batch(train.bind(3)))
    again = load_yaml(dump_yaml(app))
    assert again == app
    function = again.workflow().steps[0].target
    assert function is not None
    assert function.call is None


def test_text_of_several_lines_is_written_alike_once_hera_is_imported() -> None:
    pytest.importorskip("hera.workflows")
    step = sf.Executor(name="s", mainfile="s.py", env={"T": "a\nb"})
    app = sf.Application(name="a", workflows=[sf.Workflow(name="w", nodes=[step])])
    assert "T: |" not in dump_yaml(app)
    assert load_yaml(dump_yaml(app)) == app
