"""What of MLflow is reachable through the server, by whom, and how its artifacts are named."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.errors import InvalidError
from scanflow.http.home_token import make_step_token, parse_step_token
from scanflow_server.mlflow_access import ArtifactAddresses, classify_request, explain_mlflow_refusal
from scanflow_server.token_roles import Holder, TokenHolder

ROOT = Path("/home/me/tracker/artifacts")


@pytest.mark.parametrize(
    ("request_line", "access"),
    [
        ("GET /", "read"),
        ("GET /static-files/static/js/main.js", "read"),
        ("GET /get-artifact", "read"),
        ("GET /api/2.0/mlflow/experiments/search", "read"),
        ("POST /ajax-api/2.0/mlflow/runs/search", "read"),
        ("POST /graphql", "read"),
        ("POST /api/2.0/mlflow/runs/create", "log"),
        ("PATCH /api/2.0/mlflow/registered-models/update", "log"),
        ("DELETE /api/2.0/mlflow/registered-models/alias", "log"),
        ("PUT /api/2.0/mlflow-artifacts/artifacts/1/r/artifacts/model.bin", "log"),
        ("GET /api/2.0/mlflow-artifacts/artifacts", "read"),
        ("POST /v1/traces", "log"),
        ("POST /static-files/x", None),
        ("GET /ajax-api/2.0/mlflow/gateway-proxy", None),
        ("POST /ajax-api/3.0/mlflow/assistant/message", None),
        ("POST /ajax-api/3.0/jobs/", None),
        ("POST /api/2.0/mlflow/webhooks", None),
        ("POST /api/3.0/mlflow/scorers/register", None),
        ("GET /gateway/mlflow/v1/models", None),
        ("GET /static-files/../api/2.0/mlflow/webhooks", None),
        ("GET /api/2.0/mlflow/runs/./get", None),
        ("GET /api/2.0/mlflow/runs/get\n", None),
        ("GET /unknown", None),
    ],
)
def test_only_what_people_track_and_register_is_offered(request_line: str, access: str | None) -> None:
    method, _, path = request_line.partition(" ")
    assert classify_request(method, path) == access


@pytest.mark.filterwarnings("ignore")  # of MLflow, while it is imported
def test_each_of_mlflows_endpoints_that_changes_anything_needs_the_right_to_log() -> None:
    """The oracle is MLflow's own list: what its names say it creates, deletes, sets or logs is no reading."""
    handlers = importlib.import_module("mlflow.server.handlers")
    changes = re.compile(
        r"/(create|delete|restore|update|set|log|add|remove|alias|rename|transition|register)(?=[-/]|$)"
    )
    seen = 0
    for path, _, methods in handlers.get_endpoints():
        concrete = re.sub(r"<[^>]*>", "x", path)
        for method in methods:
            if method in {"PUT", "PATCH", "DELETE"} or (method == "POST" and changes.search(concrete)):
                seen += 1
                assert classify_request(method, concrete) in {"log", None}, (method, path)
    assert seen > 150, seen


ROLES: tuple[Holder, ...] = ("viewer", "step", "agent", "editor", "admin")


def test_viewers_and_pages_read_whatever_their_team() -> None:
    def may(role: Holder, team: str | None = None, *, by_page: bool = False) -> tuple[bool, bool]:
        caller = TokenHolder("somebody", role, team)
        read, log = (explain_mlflow_refusal(caller, access, by_page=by_page) for access in ("read", "log"))
        return read is None, log is None

    assert {role: may(role) for role in ROLES} == {
        "viewer": (True, False), "step": (True, True), "agent": (True, True), "editor": (True, True),
        "admin": (True, True),
    }  # fmt: skip
    # MLflow itself is confined to the caller's team: tests/security/test_mlflow_teams.py
    assert {role: may(role, "data") for role in ROLES} == {
        "viewer": (True, False), "step": (True, True), "agent": (True, True), "editor": (True, True),
        "admin": (True, True),
    }  # fmt: skip
    assert {role: may(role, by_page=True) for role in ROLES} == dict.fromkeys(ROLES, (True, False))


@pytest.mark.parametrize(
    "name",
    [
        "application.json", "/api/2.0/mlflow-artifacts/artifacts/e/r/artifacts/application.json",
        "application%2Ejson", "%2561pplication.json", "./application.json", "application.json/",
    ],
)  # fmt: skip
def test_a_saved_application_is_for_what_runs_it(name: str) -> None:
    def may(role: Holder, *, by_page: bool = False) -> bool:
        caller = TokenHolder("somebody", role)
        return explain_mlflow_refusal(caller, "read", by_page=by_page, names=("/get-artifact", name)) is None

    assert [may(role) for role in ROLES] == [False, True, True, True, True]
    assert not any(may(role, by_page=True) for role in ROLES)
    other = explain_mlflow_refusal(TokenHolder("v"), "read", by_page=True, names=("my-application.json", "model.bin"))
    assert other is None


def test_clients_see_artifacts_as_streamed_and_mlflow_as_files() -> None:
    addresses = ArtifactAddresses(ROOT)
    stored = {
        "experiment": {"artifact_location": f"{ROOT.as_uri()}/1", "name": f"{ROOT.as_uri()}/1"},
        "run": {"info": {"artifact_uri": f"{ROOT.as_uri()}/1/r/artifacts"}},
        "version": {"source": "file:///elsewhere/model"},
        "trace": {"tags": [{"key": "mlflow.artifactLocation", "value": f"{ROOT.as_uri()}/1/traces/t"}]},
        "params": [{"key": "source", "value": f'"source": "{ROOT.as_uri()}/1"'}],
    }
    shown = json.loads(addresses.convert_answer(json.dumps(stored).encode()))
    assert shown == {
        **stored,
        "experiment": {"artifact_location": "mlflow-artifacts:/1", "name": f"{ROOT.as_uri()}/1"},
        "run": {"info": {"artifact_uri": "mlflow-artifacts:/1/r/artifacts"}},
        "trace": {"tags": [{"key": "mlflow.artifactLocation", "value": "mlflow-artifacts:/1/traces/t"}]},
    }
    back = json.loads(addresses.convert_request(b'{"name": "n", "artifactLocation": "mlflow-artifacts:/1"}'))
    assert back == {"name": "n", "artifactLocation": f"{ROOT.as_uri()}/1"}
    assert ArtifactAddresses(None).convert_answer(b'{"source": "file:///x"}') == b'{"source": "file:///x"}'


@pytest.mark.parametrize("root", [ROOT, None])
@pytest.mark.parametrize("key", ["artifact_location", "artifactLocation", "source"])
@pytest.mark.parametrize(
    "place",
    [
        "file:///etc", "/etc", "s3://theirs/x", "http://theirs/x", "mlflow-artifacts://theirs/x", "../../etc",
        "mlflow-artifacts:/../../etc", "mlflow-artifacts:/a/%2e%2e/%2e%2e/etc", f"{ROOT.as_uri()}/../../../etc",
        f"{ROOT.as_uri()}-of-another/x", "FILE:///etc",
    ],
)  # fmt: skip
def test_a_place_outside_of_the_store_is_refused(root: Path | None, key: str, place: str) -> None:
    remedy = "runs:/RUN/NAME" if key == "source" else f"Leave '{key}' out"
    with pytest.raises(InvalidError, match=f"not in the tracker's own artifact store. .*{remedy}"):
        ArtifactAddresses(root).convert_request(json.dumps({"name": "n", key: place}).encode())


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_what_says_a_place_must_be_a_json_object(body: bytes) -> None:
    with pytest.raises(InvalidError, match="JSON"):
        ArtifactAddresses(ROOT).convert_request(body)


@given(st.text(min_size=1), st.from_regex(r"[a-z][a-z0-9-]*", fullmatch=True), st.text(max_size=80))
def test_a_steps_token_names_its_step_and_is_valid_for_its_home_alone(home: str, name: str, other: str) -> None:
    token = make_step_token(home, name, "team")
    assert parse_step_token(home, token) == (name, "team")
    assert parse_step_token(home + "x", token) is None
    assert parse_step_token(home, other) is None
    assert parse_step_token(home, f"{token.rpartition('.')[0]}.{other}") is None
