"""A hook of MkDocs: the description of the server's API, as a file beside the page on it."""

from __future__ import annotations

import json
from typing import Any

from mkdocs.structure.files import File, Files

from tests.reference.code_pages import build_openapi


def on_files(files: Files, *, config: Any) -> None:
    """Add ``reference/openapi.json`` to the site."""
    files.append(File.generated(config, "reference/openapi.json", content=json.dumps(build_openapi(), indent=1)))
