"""Times within sentences of the pages: elements in the reader's zone, as those of tables are."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from scanflow_server.dashboard.page_times import TimeFormatter


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("It fails since 2026-11-28T22:46:13Z: <no>", "It fails since 2026-11-28 23:46:13: <no>"),
        ("trigger interval:2026-11-28T22:46:10.758000Z", "trigger interval:2026-11-28 23:46:10"),
    ],
)
def test_a_time_in_a_sentence_is_shown_in_the_readers_zone(sentence: str, shown: str) -> None:
    marked = TimeFormatter(ZoneInfo("Europe/Madrid")).mark(sentence)
    assert '<time datetime="2026-11-28T22:46:1' in marked
    assert marked.striptags() == shown
    assert "<no>" not in marked


@pytest.mark.parametrize("text", ["2026-11-28T22:46:13Z", '{"at": "2026-11-28T22:46:13Z"}', "on 2026-13-41T22:46:13Z"])
def test_a_value_and_what_is_no_time_stay_as_they_are(text: str) -> None:
    assert "<time" not in TimeFormatter(ZoneInfo("Europe/Madrid")).mark(text)
