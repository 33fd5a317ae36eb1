"""The runs that actions started, as they are now: an action succeeds once its run has begun, which then goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

from scanflow.agent.agent_records import Action
from scanflow.errors import NotFoundError
from scanflow_server.run_requests import list_runs, show_run
from scanflow_server.server_context import ServerContext

_FEW: Final = 3
"""So many runs are read one by one."""

_NEWEST: Final = 200
"""Of more, those among so many of the newest runs."""


def refresh_started_runs(context: ServerContext, actions: Iterable[Action]) -> list[Action]:
    """Return actions with the present states of the runs that they started in their results; None: it is not known."""
    listed = list(actions)
    runs = {run for action in listed if (run := action.started_run) is not None}
    states = _load_states(context, runs) if runs else {}
    return [_replace_state(action, states) for action in listed]


def _load_states(context: ServerContext, runs: Collection[str]) -> dict[str, str]:
    if len(runs) > _FEW:
        return {record.name: record.state for record in list_runs(context, limit=_NEWEST)}
    states = dict[str, str]()
    for run in runs:
        with suppress(NotFoundError):
            states[run] = show_run(context, run).state
    return states


def _replace_state(action: Action, states: dict[str, str]) -> Action:
    if not isinstance(action.result, dict) or (run := action.started_run) is None:
        return action
    return action.model_copy(update={"result": {**action.result, "state": states.get(run)}})
