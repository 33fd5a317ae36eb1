"""What settings of sign-in mean, and what is refused before a server starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scanflow.errors import ScanflowError, UsageError
from scanflow_server.control.retention import RetentionController
from scanflow_server.main import main
from scanflow_server.server_context import ServerContext
from scanflow_server.server_settings import ServerSettings
from scanflow_server.sign_in_settings import GroupRule, choose_rule, parse_group_rules
from scanflow_server.store import token_store
from scanflow_server.store.token_store import TokenRow
from tests.identity_provider import CLIENT, serve_identity_provider

RIGHT = {
    "ISSUER": "https://id.example/realm",
    "CLIENT_ID": CLIENT,
    "CLIENT_SECRET": "env:NAME",
    "GROUPS": "a=vision:editor",
}


def read(**changes: str) -> ServerSettings:
    variables = {f"SCANFLOW_OIDC_{name}": text for name, text in {**RIGHT, **changes}.items()}
    return ServerSettings.from_environment({**variables, "HOME": "/nowhere"})


def test_groups_are_lines_and_a_name_of_a_group_may_have_what_separates() -> None:
    rules = parse_group_rules("ml=vision:editor; /ops=*:admin\n\n cn=a,ou=b:c=speech-2:viewer \n")
    assert rules == (
        GroupRule("ml", "vision", "editor"),
        GroupRule("/ops", None, "admin"),
        GroupRule("cn=a,ou=b:c", "speech-2", "viewer"),
    )
    assert choose_rule({"/ops", "ml"}, rules) == rules[0]
    assert choose_rule({"/op", "m"}, rules) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"GROUPS": "a=vision:owner"}, "'owner', which does not exist. Use one of viewer, agent, editor, admin"),
        ({"GROUPS": "a=Vision:editor"}, "Write GROUP=TEAM:ROLE"),
        ({"GROUPS": "vision:editor"}, "Write GROUP=TEAM:ROLE"),
        ({"GROUPS": " ; "}, "nobody could sign in"),
        ({"GROUPS": ""}, "nobody could sign in"),
        ({"ISSUER": "http://id.example"}, "http:// is for this machine alone"),
        ({"ISSUER": "http://127.0.0.1.evil.example"}, "http:// is for this machine alone"),
        ({"ISSUER": "https://ada:pw@id.example"}, "an address of the provider is https://HOST"),
        ({"ISSUER": "https://id.example?x=1"}, "without a query"),
        ({"ISSUER": "id.example"}, "an address of the provider is https://HOST"),
        ({"ISSUER": ""}, "Set SCANFLOW_OIDC_ISSUER"),
        ({"CLIENT_ID": ""}, "Set SCANFLOW_OIDC_CLIENT_ID"),
        ({"CLIENT_SECRET": "hunter2-in-clear"}, "not the secret itself"),
        ({"SESSION_HOURS": "0"}, "SCANFLOW_OIDC_SESSION_HOURS"),
        ({"TOKEN_HOURS": "inf"}, "SCANFLOW_OIDC_TOKEN_HOURS"),
    ],
    ids=str,
)
def test_settings_with_which_nobody_could_sign_in_say_what_to_set(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ScanflowError) as refused:
        read(**changes)
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_right_settings_are_read_and_show_no_secret() -> None:
    settings = read(ISSUER="http://localhost:1/realm").sign_in
    assert settings is not None
    assert (settings.name, settings.session_hours, settings.token_hours) == ("localhost:1", 8.0, 24.0)
    assert "NAME" not in repr(settings)
    assert ServerSettings.from_environment({"HOME": "/nowhere"}).sign_in is None


def test_a_server_starts_only_where_people_can_sign_in(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(_settings: ServerSettings) -> None:
        raise UsageError("It would start.")

    monkeypatch.setattr("scanflow_server.main.open_listener", listen)
    with serve_identity_provider(0.0) as provider:
        for name, text in {**RIGHT, "ISSUER": provider.issuer, "CLIENT_SECRET": "env:OIDC_TEST"}.items():
            monkeypatch.setenv(f"SCANFLOW_OIDC_{name}", text)

        def start(**answers: Any) -> tuple[int, str]:
            provider.answers = answers
            return main([]), capsys.readouterr().err

        discovery = "/realm/.well-known/openid-configuration"
        assert "Set the variable OIDC_TEST" in start()[1]
        monkeypatch.setenv("OIDC_TEST", "shh")
        code, output = start(**{discovery: (503, {})})
        assert (code, "Nobody could sign in" in output) == (3, True)
        answers: list[tuple[int, Any]] = [(404, {}), (200, []), (200, {"issuer": provider.issuer})]
        for wrong in answers:
            code, output = start(**{discovery: wrong})
            assert (code, "Set SCANFLOW_OIDC_ISSUER to the address below" in output) == (2, True), wrong
        provider.document = {"token_endpoint": "http://elsewhere.example/token"}
        assert "No provider of OpenID Connect answers" in start()[1]
        provider.document = {"issuer": "https://other.example"}
        assert "set SCANFLOW_OIDC_ISSUER=https://other.example" in start()[1]
        provider.document = {}
        assert start() == (2, "It would start.\n")
        assert start(**{discovery: (503, {})}) == (2, "It would start.\n"), "it could be used before"
        assert start(**{discovery: (404, {})})[1] != "It would start.\n"


def test_tokens_of_persons_are_numbered_and_forgotten_a_month_after_their_end(context: ServerContext) -> None:
    context.clock = lambda: 100 * 86_400.0
    with context.store.write() as connection:
        for number, expires in enumerate((5.0, 69 * 86_400.0, 71 * 86_400.0, None)):
            row = TokenRow(name="x", person="ada@x", role="viewer", created=1.0, expires=expires)
            assert token_store.add_of_person(connection, row, f"{number}").name == f"ada@x:{number + 1}"
        token_store.add(connection, TokenRow(name="bo", role="viewer", created=1.0, expires=5.0), "bo")
    RetentionController(context).forget()
    with context.store.read() as connection:
        names = [row.name for row in token_store.list_all(connection)]
    assert sorted(names) == ["ada@x:3", "ada@x:4", "bo", "home"]
