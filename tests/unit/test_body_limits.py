"""How clients split what they send into requests that the server accepts."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.http.body_limits import format_size, split_batches


@given(items=st.lists(st.text(max_size=30), max_size=30), max_items=st.integers(1, 10), max_bytes=st.integers(1, 100))
@settings(deadline=None, database=None, derandomize=True)
def test_batches_keep_the_order_and_fit_a_request(items: list[str], max_items: int, max_bytes: int) -> None:
    batches = list(split_batches(items, lambda item: len(json.dumps(item)), max_items=max_items, max_bytes=max_bytes))
    assert [item for batch in batches for item in batch] == items
    for batch in batches:
        assert 1 <= len(batch) <= max_items
        assert len(batch) == 1 or len(json.dumps(batch)) - len("[]") <= max_bytes
    for batch, following in pairwise(batches):
        is_full = len(batch) == max_items
        assert is_full or sum(len(json.dumps(item)) + 2 for item in [*batch, following[0]]) > max_bytes


def test_a_limit_is_written_in_its_unit() -> None:
    assert [format_size(2**20), format_size(4 * 2**20), format_size(2**18)] == ["1 MiB", "4 MiB", "256 KiB"]
