"""The note of what is up: what it says is believed only of the processes that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanflow.deployer.remote_home import Up, UpProcess, forget_up, read_up, up_file, write_up


def test_a_note_comes_back_as_it_was_written(tmp_path: Path) -> None:
    server = UpProcess(folder=tmp_path / "daemon", pid=7, port=1, url="http://127.0.0.1:1", log="/l")
    up = Up(server=server, started=1.5)
    assert read_up(tmp_path) is None
    write_up(tmp_path, up)
    assert read_up(tmp_path) == up
    assert [path.name for path in up_file(tmp_path).parent.iterdir()] == ["up.json"]
    assert not server.is_alive()
    assert not server.end(patience_s=1.0)
    forget_up(tmp_path)
    forget_up(tmp_path)
    assert read_up(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"server": {"pid": "many"}}', "\x00"])
def test_a_note_that_cannot_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    up_file(tmp_path).parent.mkdir(parents=True)
    up_file(tmp_path).write_text(text)
    assert read_up(tmp_path) is None
