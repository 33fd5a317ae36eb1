"""What a function of a strategy does besides choosing actions, read from its code."""

from __future__ import annotations

import functools
import json
import logging
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scanflow.agent import call
from scanflow.agent import primitives as do
from scanflow.agent.effects import find_effect

SEEN: list[Any] = []
LIMITS = {"least": 3}
RETRAIN = do.run_workflow("training")
LOG = logging.getLogger("rules")
CLIENT = urllib.request.OpenerDirector()
COUNT = 0


def choose(sample_value: dict[str, Any], parameters: dict[str, Any]) -> Any:
    actions = []  # filled as a newcomer does
    for name in sorted(sample_value["names"], key=len):
        if len(name) >= LIMITS.get("least", 1) and name.strip().lower() not in {"a", "b"}:
            actions.append(do.run_workflow(f"train-{name}", n=parameters["n"]))  # noqa: PERF401
    return actions or call("checker", "look", **{key: value for key, value in sample_value.items() if value})


def choose_and_log(value: Any) -> Any:
    from scanflow.agent.primitives import run_workflow

    LOG.info("retraining for %s", value)
    print("retraining")
    return run_workflow("training")


def only_print(value: Any) -> None:
    print(value)


def write(value: Any, folder: Path = Path("/tmp")) -> Any:
    (folder / "seen.txt").write_text(json.dumps(value))
    return RETRAIN


def write_within(value: Any) -> Any:
    return write(value)


def count_up(_found: Any) -> Any:
    global COUNT  # noqa: PLW0603  that is what is found
    COUNT += 1
    return RETRAIN


def change_the_sample(value: Any) -> Any:
    value["seen"] = True
    return RETRAIN


def change_settings(_found: Any) -> Any:
    settings = LIMITS
    settings["least"] = 4
    return RETRAIN


def with_a_client(value: Any, client: Any = CLIENT) -> Any:
    client.get(value)
    return RETRAIN


def by_a_key(value: Any) -> Any:
    return list(map(SEEN.append, value))


class Remembering:
    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, value: Any) -> Any:
        self.last = value
        return RETRAIN


@pytest.mark.parametrize(
    "function",
    [
        choose,
        choose_and_log,
        RETRAIN,
        do.delete_workflow,
        functools.partial(choose, parameters={"n": 3}),
        lambda _found: RETRAIN,
        lambda value: do.run_workflow(value["workflow"]) if value.get("due", False) else None,
        lambda _found: None,
        lambda value: [do.run_workflow(name) for name in value],
    ],
)
def test_a_function_that_only_chooses_has_no_effect(function: Callable[..., Any]) -> None:
    assert find_effect(function) is None


@pytest.mark.parametrize(
    ("function", "effect"),
    [
        (only_print, "it calls 'print'"),
        (write, "write_text"),
        (write_within, "write_text"),
        (count_up, "it changes 'COUNT'"),
        (change_the_sample, "it changes 'value'"),
        (change_settings, "it changes 'settings'"),
        (with_a_client, "it calls 'client.get'"),
        (by_a_key, "it calls 'SEEN.append'"),
        (Remembering(), "it changes 'self'"),
        (SEEN.append, "it calls 'append'"),
        (functools.partial(write, folder=Path()), "write_text"),
        (lambda value: SEEN.append(value), "it calls 'SEEN.append'"),  # noqa: PLW0108  the code of a lambda is read too
        (lambda _found: subprocess.run(["true"], check=True), "it calls 'subprocess.run'"),
        (lambda _found: shutil.rmtree("x"), "it calls 'shutil.rmtree'"),
        (eval("lambda found: found"), "cannot be read"),
    ],
)
def test_a_function_that_does_something_is_known_by_what_and_where(function: Any, effect: str) -> None:
    assert effect in str(find_effect(function))


def test_one_that_prints_and_says_what_it_may_request_is_a_choice() -> None:
    assert find_effect(only_print, declared=True) is None
