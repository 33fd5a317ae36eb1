"""The command in the corner of a page shows the same as the page, or is not there."""

from __future__ import annotations

import shlex

import pytest
from typer.testing import CliRunner

from scanflow_client.cli.command_tree import app
from tests.unit.server.page_browser import browsing
from tests.unit.server.server_rows import Api

COMMANDS = {
    "/": "scanflow status",
    "/?app=shop": None,
    "/runs": "scanflow runs",
    "/runs?state=&app=": "scanflow runs",
    "/runs?state=failed": None,
    "/runs?start=50": None,
    "/actions": "scanflow why",
    "/actions?state=failed": None,
    "/events": "scanflow events",
    "/events?type=run.failed&app=the%20shop": "scanflow events --type run.failed --app 'the shop'",
    "/events?type=run.failed&subject=run/fox-1": None,
    "/labels?app=shop": "scanflow labels --app shop",
    "/mpi": "scanflow mpi list",
    "/settings": "scanflow status",
    "/settings/tokens": "scanflow token list",
    "/settings/audit?answers=refused&who=bo": "scanflow audit --refused --who bo",
    "/settings/audit?before=3": None,
}


def test_a_page_names_the_command_that_shows_the_same_and_none_if_there_is_none(api: Api) -> None:
    with browsing(api, role="admin") as ada:
        for address, command in COMMANDS.items():
            buttons = [attributes.get("data-copy") for tag, attributes in ada.read(address).tags if tag == "button"]
            named = [text for text in buttons if text and text in COMMANDS.values()]
            assert named[:1] == ([] if command is None else [command]), address


@pytest.mark.parametrize("command", sorted(filter(None, {*COMMANDS.values()})))
def test_the_command_line_has_each_of_these(command: str) -> None:
    asked = CliRunner().invoke(app, [*shlex.split(command)[1:], "--help"])
    assert asked.exit_code == 0, asked.output
