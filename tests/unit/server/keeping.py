"""What tests of the server's lists put into its journal and its store."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from scanflow.agent.records import Action, Decision
from scanflow_server.context import Context
from scanflow_server.store.intents import StoredAction
from tests.unit.server.arbiter.making import intent

__all__ = ["entered", "stored"]


def entered(context: Context, *, app: str = "mnist", team: str = "data", workflow: str) -> str:
    """Enter a run in the journal, as who drives one does, and return its name."""
    with context.deployer._backend._journal() as journal:
        made = journal.create_run(
            app=app, team=team, workflow=workflow, parent=Path("/"), source=None, definition="{}", rng=random.Random()
        )
    return made.record.name


def stored(id: str, state: Any = "refused", verdict: Any = "refuse", **changes: Any) -> StoredAction:
    """Return an intent that came to this; ``changes`` are of its own fields."""
    wanted = intent(id, **changes)
    decision = Decision(intent=id, verdict=verdict, reason="So it was.", at=5.0)
    began = 5.0 if state in {"running", "succeeded", "failed"} else None
    return StoredAction(action=Action(id=id, intent=wanted, state=state, decision=decision, began=began, ended=None))
