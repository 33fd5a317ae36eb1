"""The scripts of the pages: of htmx, at a fixed version, and our own. Each has a name that its content determines."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from scanflow.errors import NotFoundError

PATH: Final = "/static"
SCRIPTS: Final = ("htmx.min.js", "hx-sse.min.js", "dashboard.js")
"""In the order in which they are loaded. htmx 4.0.1 and its extension for server-sent events: npm's ``htmx.org``."""


@cache
def load_scripts() -> dict[str, bytes]:
    """Return the scripts by their names, ``DIGEST-htmx.min.js``, in their order."""
    folder = files("scanflow_server.dashboard") / "static"
    contents = {name: (folder / name).read_bytes() for name in SCRIPTS}
    return {f"{hashlib.sha256(content).hexdigest()[:12]}-{name}": content for name, content in contents.items()}


def list_script_addresses() -> list[str]:
    return [f"{PATH}/{name}" for name in load_scripts()]


def load_script(name: str) -> bytes:
    """Return a script by its name.

    Raises:
        NotFoundError: there is none of that name, or of another version.
    """
    if name not in load_scripts():
        raise NotFoundError(f"There is no script {name!r}. Reload the page.")
    return load_scripts()[name]
