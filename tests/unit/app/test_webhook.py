"""Webhooks of an application, as they are written down."""

from __future__ import annotations

import pytest

import scanflow as sf
from scanflow.app.application_files import dump_json, dump_yaml, load_json, load_yaml
from scanflow.errors import InvalidError


def test_an_application_with_webhooks_comes_back_from_a_file() -> None:
    some = [sf.Webhook(url="env:SLACK", on=["drift"]), sf.Webhook(url="https://a.example:8443/x", secret="file:s")]
    app = sf.Application(name="shop", notify=some)
    assert load_json(dump_json(app)) == load_yaml(dump_yaml(app)) == app
    assert app.notify[0].on == ("drift",)


@pytest.mark.parametrize(
    "url",
    ["hooks.slack.com/T0/hidden", "ftp://a/hidden", "https://ada:hidden@a", "https:///hidden", "https://a/hidden x"],
)
def test_an_address_that_nobody_could_send_to_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidError, match="must be an http or https URL") as refused:
        sf.Webhook(url=url)
    assert "hidden" not in str(refused.value)


def test_a_secret_is_referred_to_and_never_written_down() -> None:
    with pytest.raises(InvalidError, match=r"not the secret itself\. Write env:NAME or file:PATH") as refused:
        sf.Webhook(url="env:SLACK", secret="hunter2")
    assert "hunter2" not in str(refused.value)
    assert "a.example" not in repr(sf.Webhook(url="https://a.example/T0/x"))
    with pytest.raises(InvalidError, match="on"):
        sf.Webhook(url="env:SLACK", on=["everything"])  # type: ignore[list-item]
