"""Errors on their way over HTTP: what the server raised is what the client raises."""

from __future__ import annotations

import json

import pytest

from scanflow import errors
from scanflow.errors import (
    AccessDeniedError,
    AlreadyRunningError,
    InternalError,
    InvalidError,
    NotFoundError,
    ScanflowError,
    ServiceFailedError,
    StepFailedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from scanflow.problems import error_of, problem_of, status_of

KINDS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, ScanflowError)]


@pytest.mark.parametrize("kind", [one for one in KINDS if one is not ScanflowError])
def test_an_error_arrives_as_itself_in_its_own_words(kind: type[ScanflowError]) -> None:
    status, document = problem_of(kind("The step 'x' failed. Do this."))
    found = error_of(status, json.dumps(document).encode())
    assert (type(found), str(found)) == (kind, "The step 'x' failed. Do this.")
    assert document["status"] == status
    assert document["title"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (UsageError, 400),
        (AccessDeniedError, 401),
        (InvalidError, 422),
        (NotFoundError, 404),
        (UnsupportedError, 400),
        (AlreadyRunningError, 409),
        (StepFailedError, 424),
        (ServiceFailedError, 502),
        (UnavailableError, 503),
        (InternalError, 500),
    ],
)
def test_each_error_has_the_status_that_was_agreed_on(kind: type[ScanflowError], status: int) -> None:
    assert status_of(kind("no")) == status
    assert problem_of(kind("no"))[1]["type"] == f"urn:scanflow:error:{kind.__name__}"


def test_an_error_that_is_made_from_ours_arrives_as_ours() -> None:
    class ParticularError(NotFoundError):
        pass

    status, document = problem_of(ParticularError("gone"))
    assert type(error_of(status, json.dumps(document).encode())) is NotFoundError


def test_what_is_none_of_ours_is_a_defect_whose_words_stay_in_the_log() -> None:
    status, document = problem_of(KeyError("postgresql://me:secret@host"))
    assert status == 500
    assert "KeyError" in document["detail"]
    assert "secret" not in document["detail"]
    assert type(error_of(status, json.dumps(document).encode())) is InternalError


@pytest.mark.parametrize(
    ("status", "kind", "told"),
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
def test_another_s_answer_is_read_by_its_status(status: int, kind: type[ScanflowError], told: str, body: bytes) -> None:
    found = error_of(status, body, who="The server at http://h:1")
    assert type(found) is kind
    assert told in str(found)
    assert "http://h:1" in str(found)


def test_a_type_that_is_not_known_yet_is_read_by_its_status() -> None:
    body = json.dumps({"type": "urn:scanflow:error:FromTheFutureError", "detail": "Hm."}).encode()
    assert type(error_of(409, body)) is UsageError
