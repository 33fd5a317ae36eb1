"""Opens the server's pages in a browser of this machine, logged in as the holder of the client's token.

The server gives a code for one login. The browser gets it from a file that only this user may read, and posts it: what
is in an address, other users see among the arguments of processes, and the browser remembers.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from typing import Final

from scanflow.errors import NotFoundError
from scanflow.files.private import open_home
from scanflow.settings import Settings
from scanflow.text.markup import Templates
from scanflow.transport import ServerClient, build_path

PATIENCE_S: Final = 30.0
"""How long a browser may take to log in, in seconds. The file is there as long."""

_POLL_S: Final = 0.2

OpenAddress = Callable[[str], object]


def has_browser(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bool:
    """Return whether a browser can be opened beside the terminal: not inside it, as text browsers are."""
    return platform != "linux" or any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def describe_token(settings: Settings) -> str:
    """Return where the token is that a person pastes into the login page."""
    return "the token of: scanflow token show" if settings.token is None else "the token in SCANFLOW_TOKEN"


def open_dashboard(
    server: ServerClient, home: Path, page: str, open_address: OpenAddress, *, patience_s: float = PATIENCE_S
) -> bool:
    """Open a page of the server in the browser, and return whether a browser came and used the login.

    ``home``: the folder for the file that it opens. ``open_address``: as :func:`webbrowser.open`.
    """
    login = server.post(build_path("logins"))
    content = Templates("scanflow_client").render(
        "open_dashboard.html.jinja", address=f"{server.url}/login/code", code=login["code"], page=page
    )
    folder = open_home(home.expanduser().absolute())
    with NamedTemporaryFile("w", encoding="utf-8", dir=folder, prefix="dashboard-", suffix=".html") as file:
        file.write(content)
        file.flush()
        outcomes, deadline = _open_beside(open_address, Path(file.name).as_uri()), time.monotonic() + patience_s
        while False not in outcomes and time.monotonic() < deadline:
            try:
                server.get(build_path("logins", login["id"]))
            except NotFoundError:
                return True
            time.sleep(_POLL_S)
    return False


def _open_beside(open_address: OpenAddress, address: str) -> list[object]:
    """Open an address, in a thread: a browser that is started may be waited for until it ends. What ``open_address``
    returns is then in the list; False: there is no browser."""
    outcomes: list[object] = []
    Thread(target=lambda: outcomes.append(open_address(address)), daemon=True).start()
    return outcomes
