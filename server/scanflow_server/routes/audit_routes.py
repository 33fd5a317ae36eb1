"""The route of the audit log, for admins: of their own team, or of all."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from scanflow_server.api_route import ApiRoute
from scanflow_server.auth import Admin
from scanflow_server.bodies import Named
from scanflow_server.request_problems import PROBLEMS
from scanflow_server.server_context import ContextDep
from scanflow_server.store import audit_store
from scanflow_server.store.audit_store import AuditEntry

router = APIRouter(prefix="/audit", tags=["audit"], responses=PROBLEMS, route_class=ApiRoute)


@router.get("")
def audit(
    context: ContextDep,
    caller: Admin,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    who: Named = None,
    refused: bool = False,
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
) -> list[AuditEntry]:
    """List who changed or was refused what, from where: the newest first. ``before`` goes on with older ones."""
    with context.store.read() as connection:
        return audit_store.list_newest(
            connection, limit=limit, team=caller.team, who=who, refused=refused, before=before
        )
