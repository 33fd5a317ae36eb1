"""Functions that teams send by value: pickles, which the server keeps and never loads."""

from __future__ import annotations

import base64
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from scanflow.deployer.functions_by_value import MAX_BYTES, read_versions
from scanflow.names import RunName
from scanflow_server.function_owners import FunctionOwners
from tests.security.two_teams import HTTP, Two, batch


class Trap:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def send(two: Two, headers: dict[str, str], content: bytes) -> str:
    body = {"pickled": base64.b64encode(content).decode(), **read_versions()}
    response = HTTP.post(f"{two.url}/functions", json=body, headers=headers)
    assert response.status_code == 201, response.text
    return str(response.json()["name"])


def ask_for_run(two: Two, headers: dict[str, str], team: str, function: str, route: str = "runs") -> Any:
    app = batch(f"{team}-app", team)
    app["workflows"][0]["nodes"][0] |= {"function": f"{function}:f", "parameters": {}}
    method = "PUT" if route.startswith("applications") else "POST"
    return HTTP.request(method, f"{two.url}/{route}", json={"application": app}, headers=headers)


def test_a_function_is_kept_signed_and_is_never_loaded_by_the_server(two: Two, tmp_path: Path) -> None:
    alpha, mark = two.token("alpha", "editor"), tmp_path / "loaded"
    name = send(two, alpha, content := pickle.dumps(Trap(mark)))
    assert ask_for_run(two, alpha, "alpha", name, "runs/plan").status_code == 200
    run = ask_for_run(two, alpha, "alpha", name)
    assert run.status_code == 201, run.text
    assert two.context.deployer.show(RunName(run.json()["name"])).state
    (stored,) = two.context.settings.home.rglob(f"functions/{name}")
    assert (stored.read_bytes() != content, stored.stat().st_mode & 0o077) == (True, 0)
    assert not mark.exists()


@pytest.mark.parametrize("route", ["runs", "runs/plan", "applications/beta-app"])
def test_another_team_that_knows_a_functions_name_is_answered_as_if_it_were_not_there(two: Two, route: str) -> None:
    alpha, beta = two.token("alpha", "editor"), two.token("beta", "editor")
    name = send(two, alpha, pickle.dumps(len))
    theirs, nobodys = (ask_for_run(two, beta, "beta", file, route) for file in (name, "0" * 64 + ".pickle"))
    assert (theirs.status_code, nobodys.status_code) == (404, 404), theirs.text
    assert theirs.text.replace(name, "") == nobodys.text.replace("0" * 64 + ".pickle", "")
    assert send(two, beta, pickle.dumps(len)) == name, "who has the content itself may send it"
    assert ask_for_run(two, beta, "beta", name, route).status_code < 300


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_no_route_gives_a_function_back(two: Two, method: str) -> None:
    alpha = two.token("alpha", "editor")
    name = send(two, alpha, pickle.dumps(len))
    for headers in (alpha, two.token("beta", "admin"), two.home):
        response = HTTP.request(method, f"{two.url}/functions/{name}", headers=headers)
        assert response.status_code in {404, 405}, response.text


def test_a_function_beyond_the_limit_is_refused_before_it_is_kept(two: Two) -> None:
    body = {"pickled": base64.b64encode(bytes(MAX_BYTES + 2**17)).decode(), **read_versions()}
    response = HTTP.post(f"{two.url}/functions", json=body, headers=two.token("alpha", "editor"))
    assert response.status_code == 413, response.text
    assert list(two.context.settings.home.rglob("*.pickle")) == []


def test_who_sent_what_is_forgotten_with_it(tmp_path: Path) -> None:
    owners = FunctionOwners(tmp_path)
    for name in ("old", "needed", "new"):
        owners.add("alpha", name, len(name))
    for name in ("old", "needed"):
        os.utime(tmp_path / "functions" / "alpha" / name, (1, 1))
    assert owners.forget(100.0, {"needed"}) == {"alpha": 3}
    assert sorted(path.name for path in (tmp_path / "functions" / "alpha").iterdir()) == ["needed", "new"]
