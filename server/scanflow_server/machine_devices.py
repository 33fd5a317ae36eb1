"""The GPUs of the server's machine as a caller may see them: how full each is, and by whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from scanflow.backends.device_text import DeviceState, list_device_states
from scanflow.errors import UnavailableError
from scanflow_server import run_requests
from scanflow_server.server_context import ServerContext
from scanflow_server.token_roles import TokenHolder

_OTHERS: Final = "another team"
_MAX_RUNS: Final = 200
"""The newest runs of a team, and those of it that run, which are told from another's."""


def list_machine_devices(context: ServerContext, caller: TokenHolder) -> list[DeviceState]:
    """Return each GPU, and each part of one, as the driver has it now; what another team holds has no name.

    Raises:
        UnavailableError: who holds them cannot be read, or what is held not.
    """
    inventory, claims = context.devices.read_inventory(), context.devices.list_claims()
    if not inventory.devices:
        if claims:
            raise UnavailableError(f"The GPUs that are granted cannot be read: {inventory.absence}")
        return []
    if caller.team is not None and claims:
        own = set(_iterate_own(context, caller, caller.team))
        claims = [claim if claim.subject in own else replace(claim, who=_OTHERS, holder="") for claim in claims]
    return list_device_states(inventory, claims)


def _iterate_own(context: ServerContext, caller: TokenHolder, team: str) -> Iterator[str]:
    yield from (f"service/{service.name}" for service in context.deployer.services() if caller.can_see(service.team))
    for state in (None, "running"):
        runs = run_requests.list_runs(context, limit=_MAX_RUNS, team=team, state=state)
        yield from (f"run/{run.name}" for run in runs)
