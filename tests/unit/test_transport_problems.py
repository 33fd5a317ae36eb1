"""Errors on their way over HTTP: what the server raised is what the client raises."""

from __future__ import annotations

import json

import pytest

from scanflow import errors
from scanflow.errors import InternalError, NotFoundError, ScanflowError, UnavailableError, UsageError
from scanflow.http.problems import build_problem, get_status, parse_error


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (UsageError, 400),
        (errors.AccessDeniedError, 401),
        (errors.InvalidError, 422),
        (errors.MissingExtraError, 400),
        (NotFoundError, 404),
        (errors.UnsupportedError, 400),
        (errors.AlreadyRunningError, 409),
        (errors.StepFailedError, 424),
        (errors.ServiceFailedError, 502),
        (errors.TooLargeError, 413),
        (UnavailableError, 503),
        (InternalError, 500),
    ],
)
def test_an_error_arrives_as_itself_with_its_status(kind: type[ScanflowError], status: int) -> None:
    _, document = build_problem(kind("The step 'x' failed. Do this."))
    error = parse_error(status, json.dumps(document).encode())
    assert (type(error), str(error)) == (kind, "The step 'x' failed. Do this.")
    assert document["status"] == get_status(kind("no")) == status
    assert document["type"] == f"urn:scanflow:error:{kind.__name__}"
    assert document["title"]


def test_an_error_that_is_made_from_ours_arrives_as_ours() -> None:
    class ParticularError(NotFoundError):
        pass

    status, document = build_problem(ParticularError("gone"))
    assert type(parse_error(status, json.dumps(document).encode())) is NotFoundError


def test_what_is_none_of_ours_is_a_defect_with_a_message_that_stays_in_the_log() -> None:
    status, document = build_problem(KeyError("postgresql://me:secret@host"))
    assert status == 500
    assert "KeyError" in document["detail"]
    assert "secret" not in document["detail"]
    assert type(parse_error(status, json.dumps(document).encode())) is InternalError


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (400, UsageError, "answered 400"),
        (401, UsageError, "SCANFLOW_TOKEN"),
        (404, UsageError, "answered 404"),
        (500, InternalError, "answered 500"),
        (502, UnavailableError, "scanflow up"),
        (503, UnavailableError, "scanflow up"),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<h1>nginx</h1>", b'{"type": "about:blank", "detail": "No."}', b"[1]", b"\xff"])
def test_another_s_answer_is_read_by_its_status(
    status: int, kind: type[ScanflowError], message: str, body: bytes
) -> None:
    error = parse_error(status, body, who="The server at http://h:1")
    assert type(error) is kind
    assert message in str(error)
    assert "http://h:1" in str(error)


def test_a_type_that_is_not_known_yet_is_read_by_its_status() -> None:
    body = json.dumps({"type": "urn:scanflow:error:FromTheFutureError", "detail": "Hm."}).encode()
    assert type(parse_error(409, body)) is UsageError
