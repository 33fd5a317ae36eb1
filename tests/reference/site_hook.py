"""A hook of MkDocs: writes the description of the server's API beside the page on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.reference.code_pages import build_openapi


def on_post_build(config: Any) -> None:
    """Write ``reference/openapi.json`` into the site."""
    file = Path(config["site_dir"]) / "reference" / "openapi.json"
    file.write_text(json.dumps(build_openapi(), indent=1), encoding="utf-8")
