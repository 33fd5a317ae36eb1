"""Tokens: made, listed and revoked."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from scanflow.errors import InvalidError
from scanflow.home_token import make_token, token_hash
from scanflow_server.auth import home_owner
from scanflow_server.bodies import Name
from scanflow_server.context import Given
from scanflow_server.problems import PROBLEMS
from scanflow_server.store import tokens as stored
from scanflow_server.store.tokens import TokenRow

router = APIRouter(prefix="/tokens", tags=["tokens"], responses=PROBLEMS)


class TokenBody(BaseModel):
    """A token to be made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    """Who will hold it: what is approved and labelled with it is recorded under this name."""


class NewToken(TokenRow):
    """A token that was made."""

    token: str
    """It is shown this once; the server keeps only its hash."""


@router.get("")
def tokens(context: Given) -> list[TokenRow]:
    """List the tokens by name, also those that were revoked."""
    with context.store.read() as connection:
        return stored.listed(connection)


@router.post("", status_code=201)
def make(context: Given, request: Request, body: TokenBody) -> NewToken:
    """Make a token, and show it this once."""
    if body.name == home_owner():
        raise InvalidError(f"{body.name!r} is who holds the home's own token. Choose another name.")
    token = make_token()
    with context.store.write() as connection:
        kept = stored.add(connection, body.name, token_hash(token), at=context.clock())
    request.app.state.token_names.reload()
    return NewToken(**kept.model_dump(), token=token)


@router.delete("/{name}")
def revoke(context: Given, request: Request, name: Name) -> TokenRow:
    """Let nobody in by a token from now on."""
    with context.store.write() as connection:
        revoked = stored.revoke(connection, name, at=context.clock())
    request.app.state.token_names.reload()
    return revoked
