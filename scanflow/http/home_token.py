"""The token of a home folder: a user who can read the file has all rights of its owner."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Literal

from scanflow.errors import UnavailableError
from scanflow.files.disk import build_disk_error, find_full_disk
from scanflow.files.private import open_home, open_private, replace_by_draft

_PREFIX = "scanflow_"
_STEP_PREFIX = f"{_PREFIX}step."

Role = Literal["viewer", "agent", "editor", "admin"]
"""The rights of a token: read; also send intents to the arbiter; also change what belongs to its team; also create
tokens."""


def get_token_file(home: Path) -> Path:
    return home.expanduser().absolute() / "token"


def read_home_token(home: Path) -> str | None:
    """Return the token of a home; None: it has none yet, or another user's file cannot be read."""
    try:
        return get_token_file(home).read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def ensure_home_token(home: Path) -> str:
    """Return the token of a home, creating it if needed, and deny other users access to the home."""
    path = get_token_file(home)
    try:
        open_home(path.parent)
        if not path.exists():
            _write_once(path, make_token())
        path.chmod(0o600)
    except OSError as error:
        if find_full_disk(path) is not None:
            raise build_disk_error(error, path) from error
        raise UnavailableError(
            f"The token {str(path)!r} cannot be stored: {error.strerror}. Fix the folder's owner, or use another home: "
            "SCANFLOW_HOME"
        ) from error
    token = read_home_token(home)
    if token is None:
        raise UnavailableError(
            f"The token {str(path)!r} is empty or unreadable. Remove it; a new token is then created."
        )
    return token


def keep_home_token(home: Path, token: str) -> None:
    """Store ``token`` as the token of a home."""
    path = get_token_file(home)
    if read_home_token(home) == token:
        return
    open_home(path.parent)
    draft = path.with_name(f".token-{secrets.token_hex(8)}")
    with replace_by_draft(path, draft), open_private(draft, "x", encoding="ascii") as file:
        file.write(token + "\n")


def make_token() -> str:
    return _PREFIX + secrets.token_urlsafe(32)


def derive_peer_token(home: str, app: str, team: str) -> str:
    """Return the token with which the agents of a team's application call each other, and the server reads their
    journals. It is derived from the home's, which it does not reveal. The server itself accepts it nowhere."""
    return _derive_token(home, "agents", team, app)


def derive_agent_token(home: str, app: str, team: str, agent: str, salt: str) -> str:
    """Return the token of one agent for the server. ``salt`` is random, made at the agent's start."""
    return _derive_token(home, "agent", team, app, agent, salt)


def make_salt() -> str:
    return secrets.token_hex(32)


def _derive_token(home: str, *words: str) -> str:
    return _PREFIX + _encode(hmac.digest(home.encode(), "\0".join(words).encode(), "sha256"))


def make_step_token(home: str, app: str, team: str) -> str:
    """Return the token with which steps of a team's application log to MLflow, derived from the home's.

    It says whose steps they are, so that it is valid without being stored: ``scanflow_step.`` team and application
    ``.`` signature.
    """
    whose = _encode(f"{team}/{app}".encode())
    return f"{_STEP_PREFIX}{whose}.{_digest_step(home, whose)}"


def parse_step_token(home: str, token: str) -> tuple[str, str] | None:
    """Return application and team of a step's token; None: it is none, or not of this home."""
    whose, _, signature = token.removeprefix(_STEP_PREFIX).partition(".")
    if not token.startswith(_STEP_PREFIX) or not hmac.compare_digest(
        signature.encode(), _digest_step(home, whose).encode()
    ):
        return None
    team, _, app = base64.urlsafe_b64decode(whose + "=" * (-len(whose) % 4)).decode().partition("/")
    return app, team


def _digest_step(home: str, whose: str) -> str:
    return _encode(hmac.digest(home.encode(), f"step\0{whose}".encode(), "sha256"))


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")


def hash_token(token: str) -> str:
    """Return the hash of a token to store. The token is random, so it needs no salt and no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def _write_once(path: Path, token: str) -> None:
    """Write the complete file; if another process was faster, its token stays."""
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
