"""The runs that actions started, as they are now: an action succeeds once its run has begun, which then goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scanflow.agent.agent_records import Action
from scanflow_server.server_context import ServerContext
from scanflow_server.store import run_store


def refresh_started_runs(context: ServerContext, actions: Iterable[Action]) -> list[Action]:
    """Return actions with the present states of the runs that they started in their results; None: it is not known."""
    listed = list(actions)
    runs = {run for action in listed if (run := action.started_run) is not None}
    if not runs:
        return listed
    with context.store.read() as connection:
        states = run_store.load_states(connection, runs)
    return [_replace_state(action, states) for action in listed]


def _replace_state(action: Action, states: Mapping[str, str]) -> Action:
    if not isinstance(action.result, dict) or (run := action.started_run) is None:
        return action
    return action.model_copy(update={"result": {**action.result, "state": states.get(run)}})
