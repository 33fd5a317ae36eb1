"""Labels recorded many at a time, against what a plain count of the votes gives."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scanflow.errors import ScanflowError
from scanflow_server.store import label_store
from scanflow_server.store.base import Store
from scanflow_server.store.label_store import Assignable, LabelCandidate, Labeller

IDS = ("a", "b", "c")
VALUES = st.sampled_from([7, 1, True, "x"])
BATCHES = st.lists(
    st.tuples(st.sampled_from(["ada", "bo", "cy"]), st.dictionaries(st.sampled_from(IDS), VALUES), st.booleans()),
    max_size=8,
)
_numbers = itertools.count()


class Count:
    """The votes on one sample: each labeller's last, by when it was given."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[int, str]] = {}
        self.total = 0

    def vote(self, by: str, label: Any, *, replace: bool) -> bool:
        text, before = json.dumps(label), self.last.get(by)
        if before is not None and before[1] != text and not replace:
            return False
        if before is None or before[1] != text:
            self.last[by] = self.total, text
            self.total += 1
        return True

    def winner(self) -> tuple[str, str, bool] | None:
        """Return the label in use, who gave it last, and whether another one has votes."""
        if not self.last:
            return None
        texts = [text for _, text in self.last.values()]
        _at, text, by = max(
            (at, text, by) for by, (at, text) in self.last.items() if texts.count(text) == max(map(texts.count, texts))
        )
        return text, by, len(set(texts)) > 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(batches=BATCHES)
def test_labels_recorded_together_are_those_of_a_plain_count_of_votes(
    store: Store, batches: list[tuple[str, dict[str, Any], bool]]
) -> None:
    app, counts = f"app-{next(_numbers)}", {id: Count() for id in IDS}
    with store.write() as connection:
        label_store.enqueue(connection, app, [LabelCandidate(id=id) for id in IDS], at=0.0)
        for at, (by, given_labels, replace) in enumerate(batches, start=1):
            labeller = Labeller(by, app=app, replace=replace)
            checked = labeller.check(connection, given_labels)
            taken = {id: counts[id].vote(by, label, replace=replace) for id, label in given_labels.items()}
            assert {id: not isinstance(outcome, ScanflowError) for id, outcome in checked.items()} == taken
            labeller.record(
                connection, [value for value in checked.values() if isinstance(value, Assignable)], at=float(at)
            )
        shown = {row.id: row for row in label_store.list_labels(connection, app=app, details=True)}
    for id, count in counts.items():
        use = shown[id]
        answer = (json.dumps(use.label), str(use.by), use.disputed) if use.state == "given" else None
        assert answer == count.winner()
        assert len(use.votes or ()) == count.total
