"""Routes of functions sent by value: stored as bytes, and loaded where a step that refers to one runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from scanflow.deployer.functions import check_versions
from scanflow_server.auth import Editor
from scanflow_server.bodies import Text
from scanflow_server.context import ContextDep
from scanflow_server.problems import PROBLEMS

router = APIRouter(prefix="/functions", tags=["functions"], responses=PROBLEMS)


class FunctionBody(BaseModel):
    """A function as cloudpickle writes it, and the versions of what wrote it, which have to be those here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pickled: Annotated[Base64Bytes, Field(min_length=1)]
    python: Text
    cloudpickle: Text
    scanflow: Text


class KeptFunction(BaseModel):
    """Where a function is kept."""

    model_config = ConfigDict(frozen=True)

    name: str
    """What stands before the ``:`` in the ``function`` of a step that calls it."""


@router.post("", status_code=201)
def keep(context: ContextDep, _caller: Editor, body: FunctionBody) -> KeptFunction:
    """Keep a function. It is not loaded here; the same one sent again is one."""
    check_versions(body.model_dump(exclude={"pickled"}))
    return KeptFunction(name=context.deployer.batch.keep_function(body.pickled))
