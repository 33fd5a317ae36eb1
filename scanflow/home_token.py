"""The token of a home folder: whoever can read the file may do everything that its owner may."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from scanflow.errors import UnavailableError
from scanflow.private import open_home, open_private

_PREFIX = "scanflow_"


def token_file(home: Path) -> Path:
    return home.expanduser().absolute() / "token"


def home_token(home: Path) -> str | None:
    """Return the token of a home; None: it has none yet, or another user's file cannot be read."""
    try:
        return token_file(home).read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def ensure_home_token(home: Path) -> str:
    """Return the token of a home, which is made if there is none, and close the home to other users."""
    path = token_file(home)
    try:
        open_home(path.parent)
        if not path.exists():
            _write_once(path, make_token())
        path.chmod(0o600)
    except OSError as error:
        raise UnavailableError(
            f"The token {str(path)!r} cannot be kept: {error.strerror}. Fix the folder's owner, or name another home: "
            "SCANFLOW_HOME"
        ) from error
    found = home_token(home)
    if found is None:
        raise UnavailableError(f"The token {str(path)!r} is empty or unreadable. Remove it; another is made then.")
    return found


def make_token() -> str:
    return _PREFIX + secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """Return what is kept of a token. It is random, so it needs no salt and no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def _write_once(path: Path, token: str) -> None:
    """Write the file whole; where another process was quicker, its token stays."""
    draft = path.with_name(f".token-{secrets.token_hex(8)}")
    try:
        with open_private(draft, "x", encoding="ascii") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)
