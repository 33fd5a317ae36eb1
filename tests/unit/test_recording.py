from __future__ import annotations

from pathlib import Path

import pytest

from scanflow.deployer import recording
from scanflow.knowledge import MemoryKnowledge


def test_a_file_of_predictions_becomes_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knowledge = MemoryKnowledge()
    monkeypatch.setattr(recording, "open_knowledge", lambda *_, **__: knowledge)
    file = tmp_path / "1000-1-0.npz"
    file.write_bytes(b"predictions")
    run_id = recording.log_predictions(
        home=str(tmp_path),
        tracker_uri=None,
        app="shop",
        team="data",
        service="rank",
        file=file,
        metrics={"predictions": 3},
        tags={"scanflow.revision": "r1"},
    )
    wanted = "tags.`scanflow.kind` = 'predictions' and tags.`scanflow.revision` = 'r1'"
    (run,) = knowledge.search_runs("shop", "data", wanted)
    assert (run.run_id, run.metrics) == (run_id, {"predictions": 3.0})
    back = knowledge.fetch_run_artifacts(run_id, tmp_path / "back")
    assert next(back.rglob("*.npz")).read_bytes() == b"predictions"
