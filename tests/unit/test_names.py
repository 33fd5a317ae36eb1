"""Names in the product and its tests are the field's own: no private words, and no class or file name twice."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer import Context

from tests.command_tree import load_command_tree
from tests.grammar import PRODUCT, TESTS, is_property_or_overload, parse_modules

INSTEAD = {
    "instance pool": "crew",
    "listeners": "doors door deal front",
    "(connections do not move between processes)": "held orphan orphans fate parcel keeper slot slots",
    "failover, backup": "standby",
    "metrics": "pulse figures conducted",
    "interval gate": "rhythm",
    "canary, canary policy, canary analysis": "trial judge judges judgement",
    "service spec, spec hash": "blueprint mold",
    "desired state, observed state": "stored",
    "rollout wait": "settling",
    "api, endpoint": "face faces",
    "request parser": "inbox",
    "connection manager": "hub",
    "control message": "exchange",
    "process identity": "births",
    "commands, requests, introspection": "asking asked question questions",
    "formatting": "words wording",
    "serialization": "travel",
    "occupancy": "room",
    "capacity error": "shortage",
    "available": "granted",
    "actions, calls": "acts",
    "intent service, control plane client": "desk",
    "processing records": "marks",
    "prediction dataset": "collected",
    "primitive context": "means",
    "change notifier": "bell",
    "error isolation": "apart",
    "event subscriber": "hear hearing hears told",
    "delivery, server client": "letter letters post correspondent",
    "sensor runner": "seat seats",
    "sensor state, in progress": "ledger leaf flight",
    "environment": "surroundings",
    "cpu priority": "turns",
    "registry subprocess": "aside",
    "shutdown, preflight": "ending standing",
    "report, demo": "story scenario",
    "model history": "roadmap",
    "approval": "sign",
    "again, which, a client": "anew whose somebody",
    "attempts, status": "tries fares",
}
REFUSED = {word: better for better, words in INSTEAD.items() for word in words.split()}

INSTEAD_SENT = {
    "actions": "wants",
    "active_backup": "answering",
    "event_position": "heard",
    "heartbeat": "here",
    "notified": "told",
    "subscribed": "hears",
    "(a verb for each route: create_intent)": "want",
}
"""Words that no other program sends or stores: paths of routes, fields of models, and keys of JSON."""

PLAIN = {
    "__post_init__": "dataclasses call it so",
    "model_post_init": "pydantic calls it so",
    "post": "the method of HTTP",
    "_post": "the method of HTTP",
    "/inbox": "a route of agents, which clients know",
    "slots": "of a host, in the terms of MPI's host files",
    "Trial": "what a search has measured, in the terms of Optuna and Ray Tune",
    "CodeExchange": "the code for tokens, in the terms of OAuth (RFC 7636)",
    "in_flight": "requests that are not answered yet, in the terms of HTTP servers",
    "do_POST": "http.server calls it so",
    "test_each_scenario_of_loadgen_goes_over_grpc": "what MLPerf's LoadGen calls a way to load",
}
"""Names in which such a word has its plain technical sense, and which."""


PARALLEL = {
    "__init__.py": "a package",
    "__main__.py": "python -m PACKAGE",
    "main.py": "the entry point of a program",
    "client.py": "the thesis' import path, scanflow.client, beside the client's own",
    "conftest.py": "pytest's, of each folder",
    "app.py": "an application's, of each that is measured",
}
"""File names that several packages have, and why."""

FRAMEWORKS = {
    "get_next_fire_time": "APScheduler's triggers are asked so",
    "find_class": "pickle.Unpickler asks so: it raises what no one is to load",
    "find_other_than_truths": "any value of a column, or None",
    "list_steps": "Alembic's EnvironmentContext takes it: steps, of no type",
}
"""Functions whose verb another library chose, or whose type says too little."""

MANY = frozenset(
    """AsyncIterator Iterable Iterator Listing Mapping NDArray Sequence defaultdict dict frozenset list set
    tuple""".split()
)


BOTH = pytest.mark.parametrize("paths", [PRODUCT, TESTS], ids=["product", "tests"])


@cache
def modules(paths: tuple[Path, ...] = PRODUCT) -> list[tuple[str, ast.Module]]:
    return list(parse_modules(paths).items())


def names(place: str, module: ast.Module) -> Iterator[str]:
    """Yield the names of a module, its classes and functions, of tables, and of routes of the product."""
    yield Path(place).stem
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
            for decorator in [] if place.startswith("tests/") else node.decorator_list:
                if isinstance(decorator, ast.Call) and decorator.args and isinstance(decorator.args[0], ast.Constant):
                    yield str(decorator.args[0].value)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__tablename__":
            yield ast.unparse(node.value)


def list_sent_names(module: ast.Module) -> Iterator[str]:
    """Yield what is in the paths of published routes, their names, the fields of classes, and the keys of dicts."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield from (
                field.target.id
                for field in node.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            )
        elif isinstance(node, ast.Dict):
            yield from (str(key.value) for key in node.keys if isinstance(key, ast.Constant))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            routes = [
                decorator
                for decorator in node.decorator_list
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).startswith("router.")
            ]
            yield from [node.name] if routes else []
            for route in routes:
                if "include_in_schema=False" not in map(ast.unparse, route.keywords):
                    yield from str(ast.literal_eval(route.args[0])).split("/")


def split_name(name: str) -> set[str]:
    """Return the words of a name. The sign-in of OpenID Connect is one, and no approval."""
    name = re.sub("sign_?in", "signin", name, flags=re.IGNORECASE)
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


@BOTH
def test_no_private_word_is_in_a_name(paths: tuple[Path, ...]) -> None:
    violations = [
        f"{place}: {name!r} has {word!r}. Write: {REFUSED[word]}."
        for place, module in modules(paths)
        for name in names(place, module)
        if name not in PLAIN
        for word in sorted(split_name(name) & REFUSED.keys())
    ]
    assert not violations, "\n".join(violations)


def test_no_private_word_is_sent() -> None:
    refused = {word: better for better, word in INSTEAD_SENT.items()}
    sent = [(place, name) for place, module in modules() for name in list_sent_names(module)]
    assert ("server/scanflow_server/routes/agent_routes.py", "heartbeat") in sent
    assert [f"{place}: {name!r}. Write: {refused[name]}." for place, name in sent if name in refused] == []


def test_no_class_name_is_used_twice() -> None:
    places = defaultdict(list)
    for place, module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(place)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_private_word_is_in_the_help_of_a_command() -> None:
    refused = set("anew answer answered crew fare fares judge judged somebody told trial tries wants whose".split())
    group: Any = load_command_tree()
    helps = {name: command.get_help(Context(command, info_name=name)) for name, command in group.commands.items()}
    assert len(helps) > 30
    assert {name: words_found for name, text in helps.items() if (words_found := split_name(text) & refused)} == {}


@BOTH
def test_no_two_files_have_one_name(paths: tuple[Path, ...]) -> None:
    places = defaultdict(list)
    for place, _ in modules(paths):
        if "migrations" not in Path(place).parts:
            places[Path(place).name].append(place)
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in PARALLEL} == {}


def is_optional(returns: str) -> bool:
    return returns.endswith("| None") or returns == "None"


def refuse_verb(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
    """Return what is wrong with the verb of a function, by the type that it returns; None: nothing."""
    verb, _, thing = function.name.lstrip("_").partition("_")
    if function.returns is None or not thing or is_property_or_overload(function):
        return None
    returns = ast.unparse(function.returns).strip("'")
    kinds = {part.strip().partition("[")[0] for part in returns.split("|")}
    match verb:
        case "find" if not is_optional(returns):
            return "find_… returns one or None. Write get_… (it raises NotFoundError) or list_… (many)"
        case "get" if is_optional(returns):
            return "get_… returns or raises. Write find_…"
        case "list" if not kinds & MANY and not is_command(function):
            return "list_… returns many. Write the verb of what it does"
    return None


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is a command, whose name users type: it prints what it lists."""
    return any(".command(" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_the_verb_of_a_function_says_whether_it_returns_one_none_or_many() -> None:
    wrong = [
        f"{place}:{node.lineno} {node.name}: {why}."
        for place, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name not in FRAMEWORKS
        and (why := refuse_verb(node)) is not None
    ]
    assert not wrong, "\n".join(wrong)
