"""Routes of logins: a program gets a code for its own token, with which it lets a browser in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict

from scanflow.errors import NotFoundError
from scanflow.http.home_token import hash_token
from scanflow.http.security import read_bearer_token
from scanflow_server.api_route import ApiRoute
from scanflow_server.audit import WHAT
from scanflow_server.auth import Reader
from scanflow_server.page_sessions import CODE_S, Sessions
from scanflow_server.request_problems import PROBLEMS

router = APIRouter(prefix="/logins", tags=["logins"], responses=PROBLEMS, route_class=ApiRoute)


class Login(BaseModel):
    """A login that no browser has used yet."""

    model_config = ConfigDict(frozen=True)

    id: str
    """It names the login, and lets nobody in."""


class NewLogin(Login):
    """A login for a browser, which posts the code as a form to ``/login/code``."""

    code: str
    """It is good once, and shown once."""

    expires_s: float = CODE_S


@router.post("", status_code=201)
async def begin(request: Request, _caller: Reader) -> NewLogin:
    """Return a code that logs a browser in, as the holder of the request's token, and for no longer than that is
    valid."""
    setattr(request.state, WHAT, "made a login for a browser")
    code = await _get_sessions(request).make_code(_hash_own_token(request))
    return NewLogin(id=hash_token(code), code=code)


@router.get("/{id}")
async def get(request: Request, _caller: Reader, id: Annotated[str, Path(max_length=64)]) -> Login:
    """Return a login that waits for its browser; 404: one came, or it is too late."""
    if not await _get_sessions(request).has_code(id, _hash_own_token(request)):
        raise NotFoundError("No login of that name waits for a browser.")
    return Login(id=id)


def _get_sessions(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


def _hash_own_token(request: Request) -> str:
    return hash_token(read_bearer_token(request.scope["headers"]) or "")
