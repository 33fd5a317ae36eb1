"""HttpServiceClient over HTTP: arrays in the protocol's two spellings, and refusals as the errors that they are."""

from __future__ import annotations

import itertools
import json
import ssl
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import stamina
from hypothesis import given
from hypothesis import strategies as st

from scanflow.errors import (
    AccessDeniedError,
    InvalidError,
    NotFoundError,
    ScanflowError,
    ServiceFailedError,
    TooLargeError,
    UnavailableError,
    UsageError,
)
from scanflow.http.problems import parse_refusal
from scanflow.transport import HttpServiceClient
from scanflow.transport.clients import build_tls_context
from scanflow.transport.tensors import as_arrays, decode_answer, encode_request

DTYPES = "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64".split()


def mirror(request: httpx2.Request) -> httpx2.Response:
    """Answer with what was sent, its inputs renamed outputs, in the spelling it came in."""
    length = request.headers.get("inference-header-content-length")
    body = request.content
    size = len(body) if length is None else int(length)
    document = json.loads(body[:size])
    head = json.dumps({"model_name": "m", "outputs": document["inputs"]}).encode()
    headers = {"x-scanflow-instance": "i1", "x-scanflow-revision": "r2"}
    if length is not None:
        headers["inference-header-content-length"] = str(len(head))
    return httpx2.Response(200, content=head + body[size:], headers=headers)


def service(handler: Callable[[httpx2.Request], httpx2.Response]) -> HttpServiceClient:
    return HttpServiceClient("http://127.0.0.1:1", transport=httpx2.MockTransport(handler))


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("dtype", [*DTYPES, ">i4"])
def test_an_array_comes_back_as_it_was_sent(dtype: str, binary: bool) -> None:
    sent = np.array([[0, 1, 2], [3, 100, 1]]).astype(dtype)
    with service(mirror) as client:
        answer = client.infer("m", {"x": sent, "y": sent[0]}, binary=binary)
    assert list(answer.outputs) == ["x", "y"]
    assert answer.outputs["x"].dtype == sent.dtype.newbyteorder("=")
    np.testing.assert_array_equal(answer.outputs["x"], sent)
    np.testing.assert_array_equal(answer.outputs["y"], sent[0])
    assert (answer.instance, answer.revision) == ("i1", "r2")


@given(st.lists(st.binary(max_size=9), max_size=5))
def test_bytes_come_back_as_they_were_sent(texts: list[bytes]) -> None:
    sent = np.empty(len(texts), dtype=object)
    sent[:] = texts
    body, headers = encode_request({"x": sent})
    answer = mirror(httpx2.Request("POST", "http://x/", content=body, headers=headers))
    value = decode_answer(answer.content, answer.headers["inference-header-content-length"])["x"]
    assert value.tolist() == texts


def test_text_is_sent_as_text_in_json() -> None:
    body, _ = encode_request(as_arrays(["straße", "b"]), binary=False)
    tensor = {"name": "input", "shape": [2], "datatype": "BYTES", "data": ["straße", "b"]}
    assert json.loads(body)["inputs"] == [tensor]


def test_numbers_can_be_sent_as_the_service_wants_them() -> None:
    assert as_arrays([[1, 2]], dtype="FP32")["input"].dtype == np.float32
    assert as_arrays([[1, 2]], dtype="uint8")["input"].dtype == np.uint8
    with pytest.raises(InvalidError, match="is not an array"):
        as_arrays([1], dtype="FP7")


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        (np.array([300]), "int8"),
        (np.array([-1]), "uint8"),
        (np.array([1.5]), "int64"),
        (np.array([float("nan")]), "int64"),
        (np.array([1e300]), "float32"),
        (np.array([2**63 + 1], "uint64"), "int64"),
    ],
)
def test_a_type_that_does_not_hold_the_numbers_is_refused(numbers: Any, dtype: str) -> None:
    with pytest.raises(InvalidError, match=r"The input 'x' holds numbers .*: send them as another type"):
        as_arrays({"x": numbers}, dtype=dtype)


@pytest.mark.parametrize(
    ("values", "sent"),
    [
        (np.ma.array([1.5, 2.5], mask=[False, True]), [1.5, None]),
        (np.ma.array([1, 2], mask=[False, True]), [1.0, None]),
        (np.ma.array([1, 2]), [1, 2]),
        ([None, 2.5], [None, 2.5]),
        (np.array([2, None], dtype=object), [2.0, None]),
        ([2**63 + 5, 1], [2**63 + 5, 1]),
        (["a\0", "b"], ["a\0", "b"]),
        ([b"\0\0"], [b"\0\0"]),
        (np.array([True, False], dtype=object), [True, False]),
    ],
)
def test_values_are_sent_as_they_are_and_those_that_are_missing_as_missing(values: Any, sent: list[Any]) -> None:
    array = as_arrays({"x": values})["x"]
    assert [None if value != value else value for value in array.tolist()] == sent


@pytest.mark.parametrize(
    ("moments", "texts", "described"),
    [
        (np.array(["2026-01-01T06:30"], "M8[ms]"), ["2026-01-01T06:30:00.000"], "datetime ms"),
        ([datetime(2026, 1, 1, 6, 30), None], ["2026-01-01T06:30:00", "NaT"], "datetime us"),  # noqa: DTZ001
        ([np.datetime64("2026-01-01", "s")], ["2026-01-01T00:00:00"], "datetime s"),
        ([date(2026, 1, 1), None], ["2026-01-01", "NaT"], "date"),
        ([date(2026, 1, 1), datetime(2026, 1, 1)], ["2026-01-01", "2026-01-01T00:00:00"], "date"),  # noqa: DTZ001
        (np.ma.array(["2026-01-01", "2026-01-02"], "M8[D]", mask=[False, True]), ["2026-01-01", "NaT"], "datetime D"),
        (np.array(["NaT"], "M8"), ["NaT"], "datetime"),
        (["2026-01-01"], ["2026-01-01"], ""),
    ],
)
def test_date_times_are_sent_as_text_of_which_is_said_what_it_is(
    moments: Any, texts: list[str], described: str
) -> None:
    tensor = json.loads(encode_request(as_arrays({"x": moments}), binary=False)[0])["inputs"][0]
    assert (tensor["datatype"], tensor["data"]) == ("BYTES", texts)
    assert " ".join(tensor.get("parameters", {}).values()) == described


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "There is no input to send."),
        ([[1, 2], [3]], "The input 'input' is not an array"),
        ({"x": [object()]}, "The input 'x' holds values of type object, which cannot be sent."),
        (1 + 2j, "holds complex128, which cannot be sent."),
        (["a", None], "has no value at element 1 (None). Only floating-point numbers and date-times can be missing."),
        ([True, None], "has no value at element 1"),
        ([1, "a"], "holds text and values of type int"),
        ([2**64, 1], "no type of 64 bits holds all"),
        ([2**63 + 1, -1], "no type of 64 bits holds all"),
        (np.array([1], dtype="timedelta64[s]"), "holds timedelta64"),
    ],
)
def test_what_is_no_array_is_refused_before_it_is_sent(inputs: Any, message: str) -> None:
    with pytest.raises(InvalidError) as error:
        as_arrays(inputs)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidError),
        (401, AccessDeniedError),
        (404, NotFoundError),
        (413, InvalidError),
        (421, AccessDeniedError),
        (429, UnavailableError),
        (500, ServiceFailedError),
        (503, UnavailableError),
        (504, UnavailableError),
    ],
)
def test_a_refusal_is_raised_with_the_message_of_the_service(status: int, kind: type[ScanflowError]) -> None:
    problem = {"type": "about:blank", "title": "No", "status": status, "detail": "Because of this."}

    def refuse(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, json=problem, headers={"retry-after": "2"})

    with service(refuse) as client, stamina.set_testing(True), pytest.raises(ScanflowError) as error:
        client.infer("m", [1])
    assert type(error.value) is kind
    assert (
        str(error.value) == f"The service at http://127.0.0.1:1 answered {status}: Because of this. Try again in 2 s."
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": "no such model"}', "no such model"),
        (b'{"status": {"code": -1, "info": "bad ndarray"}}', "bad ndarray"),
        (b"<h1>Bad gateway</h1>", "<h1>Bad gateway</h1>"),
        (b"[1]", "[1]"),
        (b"", "no message."),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_a_message_is_found_wherever_a_server_puts_it(body: bytes, message: str) -> None:
    assert str(parse_refusal(502, body)) == f"It answered 502: {message}"
    assert len(str(parse_refusal(500, b"x" * 10_000))) < 600


def test_what_speaks_another_language_is_said_to_do_so() -> None:
    for body in (b"hello", b"[]", b'{"outputs": [{"name": "x"}]}', b'{"outputs": 3}'):
        with (
            service(lambda request, body=body: httpx2.Response(200, content=body)) as client,  # type: ignore[misc]
            pytest.raises(UnavailableError, match="does not follow the Open Inference Protocol"),
        ):
            client.infer("m", [1])


def test_nobody_there_and_nobody_in_time_may_pass() -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused", request=request)

    def dawdle(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadTimeout("too long", request=request)

    with service(refuse) as client, pytest.raises(UnavailableError, match=r"cannot be reached .* scanflow services"):
        client.seldon({"data": {"ndarray": [[1]]}})
    with service(dawdle) as client, pytest.raises(UnavailableError, match="did not answer in time"):
        client.document("/v2")


def test_seldons_messages_go_where_they_belong() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == "/api/v1.0/predictions"
        return httpx2.Response(200, json={"data": json.loads(request.content)["data"]})

    with service(answer) as client:
        assert client.seldon({"data": {"ndarray": [[1]]}}) == {"data": {"ndarray": [[1]]}}


def test_names_and_versions_are_part_of_the_path_and_nothing_else() -> None:
    paths, tokens = [], set()

    def answer(request: httpx2.Request) -> httpx2.Response:
        paths.append(request.url.raw_path.decode())
        tokens.add(request.headers["authorization"])
        return mirror(request)

    with HttpServiceClient("http://127.0.0.1:1", token="t", transport=httpx2.MockTransport(answer)) as client:
        client.infer("a/b", [1], version="3")
        client.infer("m", [1])
    assert paths == ["/v2/models/a%2Fb/versions/3/infer", "/v2/models/m/infer"]
    assert tokens == {"Bearer t"}


CLOSED = httpx2.RemoteProtocolError("Server disconnected without sending a response.")


def make_client(*answers: httpx2.Response | Exception) -> tuple[HttpServiceClient, list[httpx2.Request]]:
    remaining, asked = list(answers), []

    def handle(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        answer = remaining.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return service(handle), asked


@pytest.mark.parametrize(
    "first", [CLOSED, httpx2.ConnectTimeout("timed out"), httpx2.Response(503, headers={"retry-after": "1"}, json={})]
)
def test_what_a_service_has_not_read_is_sent_again(first: httpx2.Response | Exception) -> None:
    client, asked = make_client(first, httpx2.Response(200, json={"ok": True}))
    with stamina.set_testing(True, attempts=3):
        assert client.seldon({"strData": "x"}) == {"ok": True}
    assert len(asked) == 2


@pytest.mark.parametrize(
    "first",
    [
        httpx2.ReadError("reset"),
        httpx2.ReadTimeout("late"),
        httpx2.Response(503, json={}),
        httpx2.Response(500, json={}),
    ],
)
def test_what_a_service_may_have_read_is_not_sent_again(first: httpx2.Response | Exception) -> None:
    client, asked = make_client(first)
    with stamina.set_testing(True, attempts=3), pytest.raises(ScanflowError):
        client.seldon({"strData": "x"})
    assert len(asked) == 1


def test_a_service_that_stays_busy_is_reported_with_its_own_message() -> None:
    busy = [httpx2.Response(503, headers={"retry-after": "2"}, json={"detail": "no instance yet"}) for _ in range(4)]
    client, asked = make_client(*busy)
    with stamina.set_testing(True, attempts=3), pytest.raises(UnavailableError, match=r"no instance yet.*again in 2 s"):
        client.seldon({"strData": "x"})
    assert len(asked) == 3


def test_an_authority_of_one_s_own_is_trusted_beside_the_others_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = build_tls_context("https://somewhere")
    assert usual is build_tls_context("https://elsewhere"), "they are read once"
    assert (usual.verify_mode, usual.check_hostname, bool(usual.get_ca_certs())) == (ssl.CERT_REQUIRED, True, True)
    plain = build_tls_context("http://somewhere")
    assert (plain.verify_mode, plain.check_hostname, plain.get_ca_certs()) == (ssl.CERT_REQUIRED, True, [])
    (tmp_path / "text.crt").write_text("no certificate")
    for name in ("none.crt", "text.crt"):
        monkeypatch.setenv("SCANFLOW_TLS_CA", str(tmp_path / name))
        with pytest.raises(UsageError, match=rf"{name}.*SCANFLOW_TLS_CA"):
            build_tls_context("https://somewhere")


def test_an_answer_that_is_longer_than_allowed_is_refused_and_one_that_is_not_is_read() -> None:
    sizes = iter((100, 101))

    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=b"x" * next(sizes), headers={"X-Instance": "1"})

    with HttpServiceClient("http://127.0.0.1:1", max_bytes=100, transport=httpx2.MockTransport(answer)) as client:
        reply = client.post("/v2", b"", {})
        assert (len(reply.content), reply.headers["x-instance"]) == (100, "1")
        with pytest.raises(TooLargeError, match="more than 100 bytes"):
            client.post("/v2", b"", {})


def test_an_answer_that_never_ends_is_given_up_after_the_time_for_all_of_it() -> None:
    class Drip(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from itertools.repeat(b"x")

    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=Drip())

    options: dict[str, Any] = {"max_bytes": 10**9, "timeout_s": 0.05, "transport": httpx2.MockTransport(answer)}
    with (
        HttpServiceClient("http://127.0.0.1:1", **options) as client,
        pytest.raises(UnavailableError, match=r"did not answer within 0\.05 s"),
    ):
        client.document("/v2")
