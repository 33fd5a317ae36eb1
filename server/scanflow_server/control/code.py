"""The files that an agent's process loads, so that who asks for it again after a change gets what the files are now."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def code_of(document: Mapping[str, Any], source: str | None, agent: str) -> str:
    """Return a digest of the Python files beside an agent's modules, which may import each other.

    Args:
        document: The application, as it travels.
        source: The application's file, in whose folder its own is. None: that is an absolute one.
        agent: One of its agents.
    """
    own: Mapping[str, Any] = next((one for one in document.get("agents", ()) if one.get("name") == agent), {})
    root = Path("/" if source is None else source).parent / str(document.get("app_dir", "."))
    modules = [root / str(module) for module in own.get("modules", ())]
    digest = hashlib.sha256()
    for folder in sorted({module.parent for module in modules}):
        for file in sorted(folder.glob("*.py")):
            digest.update(str(file).encode())
            digest.update(_text(file))
    return digest.hexdigest()


def _text(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it is told by who loads it
        return b""
