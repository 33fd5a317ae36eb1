"""Plain values under names of secrets in applications that are to be stored."""

from __future__ import annotations

from typing import Any

import pytest

import scanflow as sf
from scanflow.app.plain_secrets import check_no_plain_secrets, iterate_plain_secrets
from scanflow.errors import InvalidError


@pytest.mark.parametrize(
    "name",
    "password passwd db_password PGPASSWORD_PASSWORD token HF_TOKEN chatToken api_key apiKey x-api-key secret "
    "client_secret access_key AWS_SECRET_ACCESS_KEY private_key credentials passphrase bearer ssh_key db_pass".split(),
)
@pytest.mark.parametrize("wrap", [lambda document: document, lambda document: {"deep": [{"more": document}]}])
def test_a_plain_value_under_the_name_of_a_secret_is_found(name: str, wrap: Any) -> None:
    secrets = list(iterate_plain_secrets(wrap({name: "hunter2-hunter2"})))
    assert [name_ for _, name_ in secrets] == [name]
    assert list(iterate_plain_secrets(wrap({name: sf.secret("env:A").model_dump()}))) == []


@pytest.mark.parametrize(
    "document",
    [
        {"max_tokens": 100, "token_count": 3, "tokens": 12, "n_tokens": "7"},
        {"tokenizer": "bert", "secretary": "ada", "passes": 3, "author": "ada", "keyboard": "de"},
        {"pad_token": "<pad>", "eos_token": "</s>", "special_tokens": ["<a>"], "stop_tokens": ["."], "tokens": ["a"]},
        {"token_type": "jwt", "token_url": "https://idp.example/token", "password_file": "/run/pw"},
        {"password": None, "token": "", "auth": "basic", "use_auth": True, "password_min_length": 8},
        {"password": {"$from": "login.password"}, "token": "env:TOKEN", "api_key": "file:key.txt"},
        {"args": ["--epochs", "3", "--max-tokens", "5", "--token-file", "/run/token"]},
    ],
)
def test_what_is_no_secret_raises_no_alarm(document: Any) -> None:
    assert list(iterate_plain_secrets(document)) == []


@pytest.mark.parametrize(
    ("application", "place", "advice"),
    [
        (
            {"workflows": [{"name": "w", "nodes": [sf.Executor(name="a", mainfile="a.py", env={"API_KEY": "abc"})]}]},
            "workflows.0.nodes.0.env.API_KEY",
            "env:API_KEY",
        ),
        (
            {"agents": [{"name": "g", "modules": ["g.py"], "parameters": {"chat": {"bot-token": "abcdefgh"}}}]},
            "agents.0.parameters.chat.bot-token",
            "env:BOT_TOKEN",
        ),
        (
            {
                "workflows": [
                    {
                        "name": "m",
                        "type": "mpi",
                        "nodes": [{"kind": "mpi", "name": "m", "mainfile": "a", "n_tasks": 1, "args": ["--token=abc"]}],
                    }
                ]
            },
            "workflows.0.nodes.0.args.0",
            "the path of a file",
        ),
    ],
)
def test_an_application_that_is_to_be_saved_says_what_to_write(
    application: dict[str, Any], place: str, advice: str
) -> None:
    with pytest.raises(InvalidError, match="would be stored with the application") as error:
        check_no_plain_secrets(sf.Application(name="a", **application))
    assert place in str(error.value)
    assert advice in str(error.value)
    assert "abc" not in str(error.value)
