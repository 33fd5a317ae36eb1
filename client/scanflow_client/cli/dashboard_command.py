"""The command ``dashboard``: the server's pages in a browser, without pasting a token."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from typer import Argument

from scanflow.errors import UnavailableError
from scanflow_client.cli.command_options import connect_server, load_settings
from scanflow_client.cli.command_output import say


def dashboard(
    page: Annotated[
        str, Argument(metavar="[PAGE]", help="What to open: runs, services/NAME, ... Default: the overview.")
    ] = "",
) -> None:
    """Open the server's pages in the browser, logged in with your token.

    Examples:
        scanflow dashboard
        scanflow dashboard services/digits
    """
    import webbrowser

    from scanflow.http.security import is_loopback_host
    from scanflow_client.dashboard_browser import PATIENCE_S, describe_token, has_browser, open_dashboard

    settings, server = load_settings(), connect_server()
    path = f"/{page.lstrip('/')}"
    address, token = f"{server.url}{path}", describe_token(settings)
    if not has_browser():
        say(f"Open {address} in a browser, and log in with {token}")
        place = urlsplit(server.url)
        if is_loopback_host(place.hostname or ""):
            say(f"From another machine: ssh -L {place.port}:{place.netloc} THIS-HOST, then open that address there.")
        return
    say(f"Opening {address} in the browser.")
    if not open_dashboard(server, settings.home, path, webbrowser.open):
        raise UnavailableError(
            f"No browser logged in within {PATIENCE_S:.0f} s. One of snap or flatpak may not read the file below "
            f"{str(settings.home)!r} that it was given. Open {address} and log in with {token}"
        )
