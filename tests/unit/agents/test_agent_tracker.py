"""The knowledge base of an agent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scanflow.errors import NotFoundError
from scanflow.knowledge import MemoryKnowledge
from scanflow_agents.host import host_assembly


def test_it_has_the_models_of_the_agent_s_team_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    knowledge, spec = MemoryKnowledge(), SimpleNamespace(home=str(tmp_path), tracker_uri=None)
    knowledge.register_model("net", Path(__file__), app="shop", team="data")

    def open_memory(*_: Any, **__: Any) -> MemoryKnowledge:
        return knowledge

    monkeypatch.setattr(host_assembly, "open_knowledge", open_memory)
    own, other = (host_assembly.open_tracker(spec, team) for team in ("data", "other"))  # type: ignore[arg-type]
    assert own is not None
    assert other is not None
    assert own.get_model("net").version == 1
    with pytest.raises(NotFoundError, match="no model 'net' of the team 'other'"):
        other.get_model("net")
    with pytest.raises(NotFoundError):
        other.set_model_alias("net", "champion", 1)
