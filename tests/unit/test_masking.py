"""What looks like a secret in documents and texts, and what is shown in its place."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

import scanflow as sf
from scanflow.app.application_files import dump_document
from scanflow.app.parameters import refuse_mask
from scanflow.application_loading import load_application
from scanflow.backends.kubernetes.differences import list_changed_fields
from scanflow.backends.service_records import InstanceRecord, mask_errors
from scanflow.errors import InvalidError
from scanflow.http.problems import build_problem
from scanflow.text.masking import MaskedStream, Masker, find_mask, mask_addresses, mask_place, mask_secrets, mask_text
from scanflow.text.secret_names import looks_secret
from scanflow.text.secret_patterns import may_need_mask
from scanflow_agents.host.http_api import make_api
from scanflow_client.cli.command_output import print_json, say
from scanflow_client.formatting.text_table import Table
from tests.unit.server.answering import a_service


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:p@ss@host:5432/data", "postgresql://***@host:5432/data"),
        ("see https://ghp_token@github.com/x and b", "see https://***@github.com/x and b"),
        ("s3://bucket/key?X-Amz-Signature=0a1b&part=2", "s3://bucket/key?X-Amz-Signature=***&part=2"),
        ("http://host/path?api_key=abc#part", "http://host/path?api_key=***#part"),
        ("train.py:12 and image:1@sha256:0a1b, mail ada@host", "train.py:12 and image:1@sha256:0a1b, mail ada@host"),
        ("http://host/search?q=a@b", "http://host/search?q=a@b"),
    ],
)
def test_credentials_in_addresses_are_masked_wherever_they_stand(text: str, shown: str) -> None:
    assert mask_addresses(text) == shown
    assert mask_secrets({"innocent": [text]}) == {"innocent": [shown]}
    assert build_problem(InvalidError(text))[1]["detail"] == shown


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ({"env": {"A": "1", "B": ""}}, {"env": {"A": "***", "B": "***"}}),
        (
            {"parameters": {"password": {"$from": "login.token"}}},
            {"parameters": {"password": {"$from": "login.token"}}},
        ),
        ({"auth": "env:TOKEN", "token": "env:TOKEN"}, {"auth": "env:TOKEN", "token": "env:TOKEN"}),
        ({"auth": {"user": "ada", "pin": 1234}}, {"auth": {"user": "***", "pin": "***"}}),
        ({"tokens": 12, "auth": True, "password": None}, {"tokens": 12, "auth": True, "password": None}),
        ({"args": ["--token", "abc", "--epochs", "3"]}, {"args": ["--token", "***", "--epochs", "3"]}),
        ({"args": ["--pwd", "/app", "--pwd=/app"]}, {"args": ["--pwd", "/app", "--pwd=/app"]}),
        ({"args": ["--pwd", "abc", "--pwd=abc"]}, {"args": ["--pwd", "***", "--pwd=***"]}),
        ("run --token=abc --api-key='a b' --pwd=/app", "run --token=*** --api-key=*** --pwd=/app"),
        ("exec --pwd /app --bind /app, --pwd hunter2", "exec --pwd /app --bind /app, --pwd ***"),
        ({"args": ["--api-key=abc", "--token", "--fast"]}, {"args": ["--api-key=***", "--token", "--fast"]}),
        ({"tracker": {"uri": "http://h:1/?a=b"}}, {"tracker": {"uri": "http://h:1/?***"}}),
        ({"notify": [{"url": "https://h/s/x?y=z"}]}, {"notify": [{"url": "https://h/***"}]}),
        ({"notify": [{"url": "env:URL", "secret": "file:k"}]}, {"notify": [{"url": "env:URL", "secret": "file:k"}]}),
    ],
)
def test_a_document_keeps_its_names_and_references(document: Any, shown: Any) -> None:
    assert mask_secrets(document) == shown
    assert may_need_mask(json.dumps(document))


def test_a_place_loses_its_credentials_and_its_query() -> None:
    assert mask_place("postgresql://ada:pw@host/data?sslpassword=x") == "postgresql://***@host/data?***"
    assert mask_place("sqlite:////home/mlflow.db") == "sqlite:////home/mlflow.db"


def test_a_secret_is_masked_wherever_it_stands_however_it_is_spelled() -> None:
    secret = 'a "quoted"\\secret/é'
    masker = Masker({"password": secret})
    spelled = [
        secret,
        repr(secret),
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        "a%20%22quoted%22%5Csecret%2F%C3%A9",
    ]
    for text in spelled:
        assert "quoted" not in masker.mask_text(f"refused: {text}!"), text
    assert masker.mask({"text": [f"x{secret}y"]}) == {"text": ["x***y"]}


def test_the_lines_of_a_key_are_masked_one_by_one() -> None:
    masker = Masker({"private_key": "BEGIN KEY\nMIIEvQIBADAN\nEND OF KEY\n"})
    assert masker.mask_text("read MIIEvQIBADAN from it") == "read *** from it"


def test_what_an_address_holds_is_masked_without_the_address_too() -> None:
    masker = Masker({"place": "postgresql://ada:hunt%20er2@host/data"})
    assert masker.mask_text("no such user: ada, hunt er2, hunt%20er2") == "no such user: ada, ***, ***"


def test_a_short_secret_is_mmechanism_a_word_and_a_shorter_one_not_in_texts() -> None:
    masker = Masker({"password": "test", "token": "abc", "secret": "12345678", "api_key": "true"})
    assert masker.mask_text("test of the latest, abc, 12345678, true") == "*** of the latest, abc, 12345678, true"


def test_a_short_value_of_env_is_masked_in_texts_only_if_its_name_looks_secret() -> None:
    masker = Masker({"env": {"MODE": "train", "DB_PASSWORD": "hunter", "PLACE": "a/long/place"}})
    assert masker.mask_text("train hunter a/long/place") == "train *** ***"


def test_a_secret_that_was_cut_is_masked_beside_the_ellipsis() -> None:
    masker = Masker({"password": "correct-horse-battery"})
    assert masker.mask_text("refused correct-ho… battery, …battery") == "refused ***… battery, …***"
    assert masker.mask_text("'correct-horse-bat...") == "'***..."


def test_a_log_is_masked_however_it_arrives() -> None:
    text = b"with correct-horse-battery and correct-horse, \xff"
    masker = Masker({"password": "correct-horse-battery"})
    for size in range(1, len(text) + 1):
        stream = MaskedStream(masker)
        blocks = [stream.feed(text[start : start + size]) for start in range(0, len(text), size)]
        assert b"".join([*blocks, stream.feed(b"", last=True)]) == b"with *** and correct-horse, \xff"


def test_a_log_without_a_secret_is_shown_at_once() -> None:
    assert MaskedStream(Masker({"password": "correct-horse"})).feed(b"epoch 1\n") == b"epoch 1\n"


def test_a_masked_value_is_found_and_refused() -> None:
    assert find_mask({"a": [{"b": "x"}, {"c": "***"}]}) == "a.1.c"
    assert find_mask({"uri": "http://***@host"}) == "uri"
    assert find_mask({"text": "a *** b", "n": 3, "*": None}) is None
    with pytest.raises(InvalidError, match=r"The value of env\.KEY is masked; send the value itself\."):
        refuse_mask({"env": {"KEY": "***"}})


def test_masking_twice_changes_nothing_more() -> None:
    document = {"env": {"A": "long-enough"}, "u": "http://a:bcde@h/?token=xyz1", "tracker": "http://h/?q=1"}
    masked = Masker(document).mask(document)
    assert Masker(masked).mask(masked) == masked
    assert looks_secret("token")


def test_a_file_with_a_masked_value_is_not_run(tmp_path: Path) -> None:
    app = sf.Application(name="a", workflows=[sf.Workflow(name="w", nodes=[sf.Executor(name="s", mainfile="s.py")])])
    step = {"env": {"KEY": "***"}, "kind": "executor", "name": "s", "mainfile": "s.py"}
    document = {**dump_document(app), "workflows": [{"name": "w", "nodes": [step]}]}
    (tmp_path / "app.json").write_text(json.dumps(document))
    with pytest.raises(InvalidError, match=r"app\.json: The value of workflows\.0\.nodes\.0\.env\.KEY is masked"):
        load_application(str(tmp_path / "app.json"))


def test_json_is_printed_masked_unless_it_is_what_was_requested(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"token": "abcdef", "at": "http://a:b@host"}, indent=None)
    print_json({"token": "abcdef"}, indent=None, mask=False)
    assert capsys.readouterr().out == '{"token": "***", "at": "http://***@host"}\n{"token": "abcdef"}\n'


def test_a_screen_shows_no_credentials_of_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    say("at http://a:b@host", Table(("where",), [("http://a:b@host",)]))
    assert capsys.readouterr().out.count("http://***@host") == 2


def test_a_plan_of_a_cluster_hides_the_values_of_variables() -> None:
    def build_pod(value: str) -> dict[str, Any]:
        return {
            "metadata": {},
            "spec": {"containers": [{"name": "c", "image": value, "env": [{"name": "KEY", "value": value}]}]},
        }

    changes = [str(change) for change in list_changed_fields(build_pod("before"), build_pod("after"))]
    assert [("before" in change, "KEY" in change) for change in changes] == [(False, True), (True, False)]


def test_the_record_of_a_service_quotes_none_of_its_variables() -> None:
    record = a_service("digits", "failed").model_copy(
        update={
            "error": "it exited with code 1: hunter2hunter2 refused",
            "instances": (InstanceRecord(instance="digits-0", state="failed", error="hunter2hunter2 refused"),),
        }
    )
    masked = mask_errors(record, Masker({"serving": {"env": {"KEY": "hunter2hunter2"}}}))
    assert masked.error == "it exited with code 1: *** refused"
    assert masked.instances[0].error == "*** refused"


def test_a_step_where_the_parameter_does_not_fit_does_not_quote_a_secret_inside_it() -> None:
    def connect(place: int) -> None:
        """Take a number."""

    with pytest.raises(InvalidError) as refused:
        sf.step(connect).bind(place={"password": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_an_agent_shows_its_journal_masked() -> None:
    entries = [{"kind": "sample", "body": {"value": {"api_key": "k", "at": "http://a:b@host", "n": 1}}}]
    host: Any = SimpleNamespace(state=SimpleNamespace(journal=lambda **_: entries))
    api = make_api(host, tokens=["t"], hosts=["testserver"])
    shown = TestClient(api).get("/journal", headers={"authorization": "Bearer t"}).json()
    assert shown[0]["body"]["value"] == {"api_key": "***", "at": "http://***@host", "n": 1}


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('{"password": "hunter2-secret"}', '{"password": "***"}'),
        ("{'api_key': 'hunter2-secret'}", "{'api_key': '***'}"),
        ("train --password hunter2-secret --epochs 3", "train --password *** --epochs 3"),
        ("Server=db;User=me;Password=hunter2-secret;", "Server=db;User=me;Password=***;"),
        ("Authorization: Bearer hunter2-secret", "Authorization: Bearer ***"),
        ("postgres://user:hunter2-p@ss/w#X@host/db", "postgres://***@host/db"),
    ],
)
def test_what_a_text_gives_to_a_secret_name_is_masked_and_known(text: str, masked: str) -> None:
    assert mask_secrets({"parameters": {"command": text}}) == {"parameters": {"command": masked}}
    secret = "hunter2-p@ss/w#X" if "w#X" in text else "hunter2-secret"
    assert Masker({"parameters": {"command": text}}).mask_text(f"It said {secret}.") == "It said ***."


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=5",
        "auth=env:NAME",
        "models:/net@champion",
        "https://host/@user/x",
        "s3://bucket/a:b@c",
        "token: a b",
    ],
)
def test_what_gives_nothing_to_a_secret_name_stays(text: str) -> None:
    assert mask_secrets({"parameters": {"command": text}}) == {"parameters": {"command": text}}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("failed: --token=abc12345xyz --token spaced98765", "failed: --token=*** --token ***"),
        ("--password 'quoted pw one' -v", "--password *** -v"),
        ("password: yamlpass88, user: ada", "password: ***, user: ada"),
        ("X-Api-Key: 0123abcd", "X-Api-Key: ***"),
        ("--cookie abcdef123", "--cookie ***"),
        ("Authorization: Bearer eyJhbGciOiJIUzI1NiJ9", "Authorization: Bearer ***"),
        ("MLFLOW_TRACKING_TOKEN=scanflow_step.YWxwaGEvZW52.OWZyMrxyzabc", "MLFLOW_TRACKING_TOKEN=***"),
        ("it was scanflow_Zx81kdlMNAPQ_ooqqllPPzz-71kkL.", "it was ***"),
        ('{"api_key": "outkey-123456"}', '{"api_key": "***"}'),
    ],
)
def test_what_looks_like_a_secret_is_masked_in_any_text(text: str, shown: str) -> None:
    assert mask_text(text) == Masker().mask_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "the option --token is required",
        "pass --token or set HF_TOKEN",
        "use --password to log in",
        "--tokens 4096 --token-budget 100000 --max_tokens 512",
        "--token-file /run/x --secret-name my-secret --token_type bearer",
        "invalid token: unexpected end of file",
        "ValueError: password: must be longer",
        "pwd: /data/run1",
    ],
)
def test_sentences_counts_and_files_are_not_masked(text: str) -> None:
    assert mask_text(text) == text


def test_a_document_that_is_about_secrets_is_shown() -> None:
    document = {"token_type": "word", "secretName": "db", "password_policy": "long", "pwd": "/data", "token_ttl": "5m"}
    assert mask_secrets(document) == document


def test_outputs_are_data_of_which_texts_under_secret_names_are_masked() -> None:
    outputs = {"api_key": "outkey-123456", "tokens": ["a", "b"], "result": {"password": "pw", "tokens": 3}}
    assert Masker().mask_outputs(outputs) == {
        "api_key": "***", "tokens": ["a", "b"], "result": {"password": "***", "tokens": 3}
    }  # fmt: skip


@given(
    text=st.sampled_from([b"a\nAPI_KEY=abcdefgh\nb", b"x\r--token=abcdefgh\r\ny", b"no end password=abcdefgh"]),
    size=st.integers(1, 30),
)
def test_a_log_is_masked_wherever_it_is_split(text: bytes, size: int) -> None:
    stream, step = MaskedStream(Masker()), size
    shown = b"".join(stream.feed(text[at : at + step]) for at in range(0, len(text), step))
    shown += stream.feed(b"", last=True)
    assert shown == text.replace(b"abcdefgh", b"***")
