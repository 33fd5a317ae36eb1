"""Routes of tokens: create, list and revoke, by admins, each within the admin's own team."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.http.home_token import Role, hash_token, make_token
from scanflow_server.api_route import ApiRoute
from scanflow_server.audit import WHAT
from scanflow_server.auth import Admin, get_home_owner
from scanflow_server.bodies import TokenName
from scanflow_server.request_problems import LABEL, PROBLEMS
from scanflow_server.server_context import ContextDep, ServerContext
from scanflow_server.store import token_store
from scanflow_server.store.token_store import TokenRow
from scanflow_server.token_roles import TokenHolder

router = APIRouter(prefix="/tokens", tags=["tokens"], responses=PROBLEMS, route_class=ApiRoute)

_MAX_LIFETIME_S = 100 * 366 * 86_400.0


class TokenBody(BaseModel):
    """A token to create."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=LABEL, max_length=63)]
    """The holder's name, under which approvals and labels are recorded."""

    role: Role = "editor"
    team: Annotated[str | None, Field(pattern=LABEL, max_length=63)] = None
    """The team it is for. Null: the same as the caller's token: one team, or all."""

    expires_s: Annotated[float | None, Field(gt=0, le=_MAX_LIFETIME_S, allow_inf_nan=False)] = None
    """Its lifetime in seconds. Null: until it is revoked."""


class NewToken(TokenRow):
    """A created token."""

    token: str
    """It is shown only once: the server stores only its hash."""


@router.get("")
def tokens(context: ContextDep, caller: Admin) -> list[TokenRow]:
    """List the tokens that the caller may revoke, revoked ones included, by time of creation."""
    with context.store.read() as connection:
        return [token for token in token_store.list_all(connection) if _is_own(caller, token)]


@router.post("", status_code=201)
def make(context: ContextDep, request: Request, caller: Admin, body: TokenBody) -> NewToken:
    """Create a token, and show it once. Its permissions are at most those of the caller's token."""
    token = make_named_token(context, caller, body)
    setattr(request.state, WHAT, describe_token(token))
    return token


@router.delete("/{name}")
def revoke(context: ContextDep, caller: Admin, name: TokenName) -> TokenRow:
    """Revoke a token."""
    with context.store.write() as connection:
        own = {token.name: token for token in token_store.list_all(connection) if _is_own(caller, token)}
        if name not in own:
            raise NotFoundError(f"There is no token {name!r}.{did_you_mean(name, own)}")
        revoked = token_store.revoke(connection, own[name], at=context.clock())
    context.token_notifier.notify()
    return revoked


def make_named_token(context: ServerContext, caller: TokenHolder, body: TokenBody) -> NewToken:
    """Create a token of the caller's team, or of the one that is named.

    Raises:
        ForbiddenError: the caller is no admin of that team.
        InvalidError, AlreadyRunningError: the name is reserved, or in use.
    """
    team, token, at = body.team or caller.team, make_token(), context.clock()
    caller.check("administer", team)
    if body.name == get_home_owner():
        raise InvalidError(f"The name {body.name!r} is reserved for the home's own token. Choose another name.")
    expires = None if body.expires_s is None else at + body.expires_s
    row = TokenRow(name=body.name, role=body.role, team=team, created=at, expires=expires)
    with context.store.write() as connection:
        created = token_store.add(connection, row, hash_token(token))
    context.token_notifier.notify()
    return NewToken(**created.model_dump(), token=token)


def describe_token(row: TokenRow) -> str:
    """Return what the audit log says of a token that was made."""
    return f"made the token {row.name!r}: {row.role}, {'all teams' if row.team is None else f'team {row.team}'}"


def _is_own(caller: TokenHolder, token: TokenRow) -> bool:
    return caller.team is None or caller.team == token.team
