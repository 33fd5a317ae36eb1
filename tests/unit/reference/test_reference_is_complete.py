"""What the reference lists is held against the code from outside: literals in the sources, and what programs serve."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scanflow.agent.event_types import EVENT_TYPES
from scanflow_serving.endpoints import ENDPOINTS
from scanflow_serving.serving_metrics import FAMILIES
from tests.grammar import CHECKOUT
from tests.reference.tables import list_server_metrics, list_setting_names
from tests.unit.serving.serving_harness import instance, node, tensor, write_class

SOURCES = ("scanflow", "agents", "client", "server")
FOR_TESTS = {"SCANFLOW_SCIENCE", "SCANFLOW_SCIENCE_DATA", "SCANFLOW_KILLS_S", "SCANFLOW_KILLS_SEED"}
"""Variables of our tests that the documentation names."""

FILES = {"db", "json", "jsonl", "keras", "lock", "onnx", "pkl", "py", "text", "toml", "yaml"}
"""What follows a dot in names of files."""

NO_EVENTS = {
    "agent.agent_records": "a module",
    "agent.strategy": "a module",
    "current": "the role of a revision",
    "events.seen": "in streams of events for agents only: the number up to which they were read",
    "scanflow_graph": "the platform of a model",
}
"""Literals that look like a type of event, or a metric, and what they are."""

RECORDERS = {"record", "record_intent_event", "report_event", "_record", "_report"}
CLASS = """
class Double:
    def predict(self, X):
        return X * 2
"""


def list_files(*folders: str, pattern: str = "*.py") -> Iterator[Path]:
    for folder in folders:
        yield from sorted((CHECKOUT / folder).rglob(pattern))


def find_variables(files: Iterator[Path]) -> dict[str, str]:
    names: dict[str, str] = {}
    for file in files:
        for name in re.findall(r"\bSCANFLOW_[A-Z0-9_]+", file.read_text(encoding="utf-8", errors="ignore")):
            names.setdefault(name, str(file.relative_to(CHECKOUT)))
    return names


def test_every_variable_that_the_sources_name_is_listed() -> None:
    listed = list_setting_names()
    named = find_variables(list_files(*SOURCES)) | find_variables(list_files("deploy", pattern="*.*"))
    assert len(named) > 90
    assert {name: place for name, place in named.items() if not is_listed(name, listed)} == {}


def test_every_variable_that_the_documentation_names_is_listed() -> None:
    listed, named = list_setting_names() | FOR_TESTS, find_variables(list_files("docs", "tutorials", pattern="*.md"))
    assert {name: place for name, place in named.items() if not is_listed(name, listed)} == {}


def is_listed(name: str, listed: set[str]) -> bool:
    """Return whether a variable is listed, or a prefix of one that is."""
    return name in listed or (name.endswith("_") and any(other.startswith(name) for other in listed))


def find_event_types() -> dict[str, str]:
    """Return what the sources name as types of events, and where. A part that is computed is a ``*``."""
    prefixes = {name.partition(".")[0] for name in EVENT_TYPES if "." in name}
    types: dict[str, str] = {}
    for file in list_files(*SOURCES):
        if file.name == "event_types.py":
            continue
        for part in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = ""
            if isinstance(part, ast.Call) and getattr(part.func, "attr", getattr(part.func, "id", "")) in RECORDERS:
                texts = [read_pattern(argument) for argument in part.args]
                name = next((text for text in texts if re.fullmatch(r"[a-z_]+(\.[a-z_*]+)?", text)), "")
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                head, _, tail = part.value.partition(".")
                if head in prefixes and re.fullmatch(r"[a-z_]+", tail) and tail not in FILES:
                    name = part.value
            if name:
                types.setdefault(name, f"{file.relative_to(CHECKOUT)}:{getattr(part, 'lineno', 0)}")
    return types


def read_pattern(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ""


def test_every_type_of_event_that_the_sources_name_is_listed() -> None:
    named = find_event_types()
    patterns = {name: re.escape(name).replace(r"\*", r"[a-z]+") for name in named}
    unlisted = {
        name: named[name]
        for name, pattern in patterns.items()
        if name not in NO_EVENTS and not any(re.fullmatch(pattern, listed) for listed in EVENT_TYPES)
    }
    assert unlisted == {}
    stale = [name for name in EVENT_TYPES if not any(re.fullmatch(pattern, name) for pattern in patterns.values())]
    assert stale == []


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_a_service_has_the_metrics_and_labels_that_are_listed(tmp_path: Path) -> None:
    path = write_class(tmp_path, CLASS)
    async with instance(tmp_path, node("double", path, "Double")) as here:
        await here.infer([1])
        await here.ask("/v2/models/absent/infer", tensor([1]))
        await here.ask("/v2/models/wf/infer", b"{}")
        text = (await here.ask("/metrics")).body.decode()
    scraped = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(scraped) >= 8
    for name, family in scraped.items():
        assert family.type == FAMILIES[name].kind
        labels = {label for sample in family.samples for label in sample.labels} - {"le", "service"}
        assert labels == set(FAMILIES[name].labels), name


def test_every_metric_that_the_sources_name_is_listed() -> None:
    listed = {*FAMILIES, *(name for name, *_ in list_server_metrics())}
    pattern = r'"(scanflow_[a-z_]+?)(?:_total|_bucket|_sum|_count)?"'
    folders = ("server/scanflow_serving", "scanflow/backends/local/services")
    named = {name for file in list_files(*folders) for name in re.findall(pattern, file.read_text(encoding="utf-8"))}
    named = {name for name in named if not name.startswith(("scanflow_serving", "scanflow_custom"))}
    assert named - listed - {*NO_EVENTS} == set()


@pytest.mark.anyio
async def test_a_service_has_the_endpoints_that_are_listed(tmp_path: Path) -> None:
    path = write_class(tmp_path, CLASS)
    async with instance(tmp_path, node("double", path, "Double")) as here:
        for endpoint in ENDPOINTS:
            place = endpoint.path.format(model="wf", version="r1")
            answer = await here.ask(place, b"{}" if endpoint.method == "POST" else None)
            assert answer.status not in {404, 405}, place


def test_every_path_that_a_service_answers_is_listed() -> None:
    tree = ast.parse((CHECKOUT / "server" / "scanflow_serving" / "routes.py").read_text(encoding="utf-8"))
    build = next(part for part in ast.walk(tree) if getattr(part, "name", "") == "_build_routes")
    texts = {part.value for part in ast.walk(build) if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    paths = {text for text in texts if text.startswith("/")}
    assert len(paths) >= 12
    assert {path for path in paths if not any(path in endpoint.path for endpoint in ENDPOINTS)} == set()


def test_commands_exit_with_listed_codes_only() -> None:
    """No number is written where a command ends: each is one of ``exit_codes``."""
    written = [
        f"{file.relative_to(CHECKOUT)}:{part.lineno}"
        for file in list_files("client/scanflow_client")
        for part in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(part, ast.Call)
        and ast.unparse(part.func) in {"typer.Exit", "sys.exit"}
        and any(isinstance(argument, ast.Constant) and isinstance(argument.value, int) for argument in part.args)
    ]
    assert written == []
