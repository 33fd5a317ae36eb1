"""Routes of functions sent by value: stored as bytes, and loaded where a step that refers to one runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from scanflow.backends.function_store import compute_name
from scanflow.deployer.functions_by_value import check_versions
from scanflow_server.api_route import DEFINITION, ApiRoute
from scanflow_server.auth import Editor
from scanflow_server.bodies import Text
from scanflow_server.function_owners import FunctionOwners
from scanflow_server.request_problems import PROBLEMS
from scanflow_server.server_context import ContextDep
from scanflow_server.store import usage

router = APIRouter(prefix="/functions", tags=["functions"], responses=PROBLEMS, route_class=ApiRoute)


class FunctionBody(BaseModel):
    """A function serialized by cloudpickle, with the versions that serialized it, which must equal the server's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pickled: Annotated[Base64Bytes, Field(min_length=1)]
    python: Text
    cloudpickle: Text
    scanflow: Text


class SavedFunction(BaseModel):
    """The reference to a stored function."""

    model_config = ConfigDict(frozen=True)

    name: str
    """The part before the ``:`` in the ``function`` of a step that calls it."""


@router.post("", status_code=201, dependencies=[DEFINITION])
def keep(context: ContextDep, caller: Editor, body: FunctionBody) -> SavedFunction:
    """Store a function, without loading it. The same function is stored only once; only applications of teams that sent
    it may name it."""
    check_versions(body.model_dump(exclude={"pickled"}))
    batch, team = context.deployer.batch, caller.team
    if team is None:
        return SavedFunction(name=batch.keep_function(body.pickled))
    owners, n_bytes = FunctionOwners(context.settings.folder), len(body.pickled)
    if not owners.has(team, compute_name(body.pickled)):
        with context.store.read() as connection:
            usage.check(connection, team, n_bytes, max_mib=context.settings.max_team_mib)
    name = batch.keep_function(body.pickled)
    with context.store.write() as connection:
        if not owners.has(team, name):
            usage.add(connection, team, n_bytes)
        owners.add(team, name, n_bytes)
    return SavedFunction(name=name)
