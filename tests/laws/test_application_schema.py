"""The schema for editors and the loader agree: on YAML of the repository, on written applications, on wrong ones.

What only the loader knows, such as a cycle or an unknown name, the schema accepts.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from scanflow.app.application_files import dump_document, load_document, load_yaml
from scanflow.app.application_schema import build_application_schema
from scanflow.app.yaml_text import read_yaml
from scanflow.application_loading import load_application
from scanflow.errors import InvalidError

CHECKOUT = Path(__file__).parents[2]
SCHEMA = build_application_schema()
VALIDATOR = jsonschema_rs.Draft202012Validator(SCHEMA)

EVERYTHING = """
schema: scanflow/v1
name: shop
team: red
app_dir: .
tracker: {uri: {$secret: "env:TRACKER"}}
notify: [{url: {$secret: "env:HOOK"}, on: [drift]}]
workflows:
- name: cleaning
  edges: [{dependee: list-files, depender: report}]
  nodes:
  - {kind: executor, name: list-files, function: "app.py:list_files", timeout: 15m, retries: 2, cache: v2}
  - kind: executor
    name: clean
    function: app.py:clean
    parameters: {file: {$from: item}, deep: [1, {a: null}]}
    for_each: {$from: list-files.result}
    retries: {limit: 3, delay: 5s}
    affinity: CPUMem
    env: {KEY: {$secret: "env:KEY"}, PLAIN: text}
    resources: {cpu: 500m, memory: 1Gi}
  - {kind: executor, name: report, mainfile: report.py, when: "list-files.result != []", affinity: {mode: cpu}}
- name: serve
  type: online
  serving: {port: 8080, deadline: 5s, record: 0.1}
  nodes:
  - kind: service
    name: model
    role: model
    model: models:/shop@champion
    scaling: {metric: rps, target: 10, max: 4}
    batching: {max_size: 8}
- name: job
  type: mpi
  nodes: [{kind: mpi, name: pi, mainfile: pi, n_tasks: 2, profile: cpu}]
agents:
- name: watcher
  modules: [watch.py]
  sensors:
  - {name: a, function: "watch.py:look", trigger: {kind: interval, seconds: 1h}}
  - name: b
    function: watch.py:look
    trigger: {kind: all_of, triggers: [{kind: call}, {kind: event, type: run.failed}]}
"""

WRONG: dict[str, tuple[str, Any]] = {
    "an unknown field": ("colour", "red"),
    "a missing name": ("name", None),
    "a name that is a number": ("name", 3),
    "another version": ("schema", "scanflow/v2"),
    "no version": ("schema", None),
    "workflows as a mapping": ("workflows", {"name": "a"}),
    "an unknown field of a workflow": ("workflows/0/color", 1),
    "a workflow without nodes": ("workflows/0/nodes", []),
    "an unknown type of workflow": ("workflows/0/type", "stream"),
    "edges as text": ("workflows/0/edges", "a >> b"),
    "an edge without an end": ("workflows/0/edges/0/depender", None),
    "a node of an unknown kind": ("workflows/0/nodes/0/kind", "step"),
    "a node without a kind": ("workflows/0/nodes/0/kind", None),
    "a node without a name": ("workflows/0/nodes/0/name", None),
    "an unknown field of a step": ("workflows/0/nodes/0/retry", 3),
    "parameters as a list": ("workflows/0/nodes/1/parameters", ["a"]),
    "retries as a list": ("workflows/0/nodes/1/retries", [3]),
    "retries without a limit": ("workflows/0/nodes/1/retries/limit", None),
    "an unknown mode of affinity": ("workflows/0/nodes/1/affinity", "gpu"),
    "a number in env": ("workflows/0/nodes/1/env/PLAIN", 3),
    "an item that is no list": ("workflows/0/nodes/1/for_each", "list-files.result"),
    "a timeout as a list": ("workflows/0/nodes/0/timeout", [1]),
    "memory as a mapping": ("workflows/0/nodes/1/resources/memory", {}),
    "a cache of a number": ("workflows/0/nodes/0/cache", 2),
    "a condition of a number": ("workflows/0/nodes/2/when", 3),
    "a port that is too high": ("workflows/1/serving/port", 70000),
    "a share above 1": ("workflows/1/serving/record", 1.5),
    "an unknown role": ("workflows/1/nodes/0/role", "SERVER"),
    "an unknown metric": ("workflows/1/nodes/0/scaling/metric", "rpm"),
    "a scaling without target": ("workflows/1/nodes/0/scaling/target", None),
    "batches of nothing": ("workflows/1/nodes/0/batching/max_size", 0),
    "tasks as text": ("workflows/2/nodes/0/n_tasks", "two"),
    "an unknown profile": ("workflows/2/nodes/0/profile", "disk"),
    "an unknown field of an agent": ("agents/0/module", "watch.py"),
    "a trigger of an unknown kind": ("agents/0/sensors/0/trigger/kind", "hourly"),
    "a trigger without its field": ("agents/0/sensors/0/trigger/seconds", None),
    "an empty trigger of several": ("agents/0/sensors/1/trigger/triggers", []),
    "news that there are not": ("notify/0/on", ["rain"]),
    "an unknown field of the tracker": ("tracker/url", "x"),
}
"""What is put where; None removes what is there."""


def iterate_files() -> Iterator[Any]:
    """Yield the YAML of the repository that describes an application: files, and blocks of pages and tests."""
    folders = (CHECKOUT / name for name in ("docs", "tests", "tutorials"))
    for file in [*CHECKOUT.glob("*.md"), *(path for folder in folders for path in sorted(folder.rglob("*")))]:
        if file.suffix not in {".md", ".yaml", ".yml"} or file.name == "agent.yaml":  # a manifest that holds one
            continue
        text = file.read_text(encoding="utf-8")
        blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if file.suffix == ".md" else [text]
        for number, block in enumerate(blocks):
            if "schema: scanflow/" in block:
                yield pytest.param(block, id=f"{file.relative_to(CHECKOUT)}:{number}")


@pytest.mark.parametrize("text", [*iterate_files(), pytest.param(EVERYTHING, id="everything")])
def test_what_the_loader_takes_is_valid(text: str) -> None:
    application = load_yaml(text)
    VALIDATOR.validate(read_yaml(text))
    VALIDATOR.validate(dump_document(application))


@pytest.mark.parametrize("path", sorted((CHECKOUT / "tutorials").rglob("app.py")), ids=lambda path: path.parent.name)
def test_an_application_written_in_python_is_valid_as_a_document(path: Path) -> None:
    VALIDATOR.validate(dump_document(load_application(str(path))[0]))


@pytest.mark.parametrize(("place", "value"), WRONG.values(), ids=WRONG)
def test_a_document_of_a_wrong_shape_is_refused_by_both(place: str, value: Any) -> None:
    document = copy.deepcopy(read_yaml(EVERYTHING))
    *parents, last = place.split("/")
    part: Any = document
    for key in parents:
        part = part[int(key) if isinstance(part, list) else key]
    if value is None:
        del part[last]
    else:
        part[last] = value
    with pytest.raises(InvalidError):
        load_document(document)
    assert not VALIDATOR.is_valid(document)


def test_each_definition_has_a_title_and_refuses_unknown_fields() -> None:
    for name, definition in {"Application": SCHEMA, **SCHEMA["$defs"]}.items():
        (form,) = [form for form in definition.get("anyOf", [definition]) if form["type"] == "object"]
        assert form["title"] == name
        assert form["additionalProperties"] is False
    steps = SCHEMA["$defs"]["Executor"]["properties"]
    assert steps["in_process"]["description"].startswith("Run a cheap function inside the runner's process")
    assert "``" not in str(SCHEMA)


def test_the_schema_is_one_itself() -> None:
    jsonschema_rs.meta.validate(SCHEMA)
