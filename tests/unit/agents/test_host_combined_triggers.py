"""Combined triggers: which pulses make the whole fire."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.triggers import AllOf, AnyOf, Trigger
from scanflow_agents.host.combined_triggers import NOTHING, Path, filter_seen, iterate_leaves, mark_fired

CALL = sf.on_call()
HOURLY = sf.every(hours=1)

triggers: st.SearchStrategy[Trigger] = st.recursive(
    st.just(CALL),
    lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda parts: st.sampled_from([sf.all_of(*parts), sf.any_of(*parts)])
    ),
    max_leaves=8,
)


class Model:
    """The same said with objects that remember, one for each part."""

    def __init__(self, trigger: Trigger, at: Path = "") -> None:
        self.at = at
        self.every = isinstance(trigger, AllOf)
        inner = trigger.triggers if isinstance(trigger, AllOf | AnyOf) else ()
        self.parts = [Model(part, f"{at}.{index}" if at else str(index)) for index, part in enumerate(inner)]
        self.done = [False] * len(self.parts)

    def mark_fired(self, fired: set[Path]) -> bool:
        if not self.parts:
            return self.at in fired
        now = [part.mark_fired(fired) for part in self.parts]
        if not self.every:
            return any(now)
        self.done = [before or fresh for before, fresh in zip(self.done, now, strict=True)]
        if all(self.done):
            self.done = [False] * len(self.parts)
            return True
        return False


@given(triggers, st.data())
def test_any_combination_fires_as_its_definition_says(trigger: Trigger, data: st.DataObject) -> None:
    paths = [path for path, _ in iterate_leaves(trigger)]
    model, seen = Model(trigger), NOTHING
    for fired in data.draw(st.lists(st.sets(st.sampled_from(paths)), max_size=20)):
        seen, fires = mark_fired(trigger, seen, fired)
        assert fires == model.mark_fired(fired)


@given(triggers)
def test_without_a_heartbeat_nothing_fires_and_nothing_is_remembered(trigger: Trigger) -> None:
    assert mark_fired(trigger, NOTHING, []) == (NOTHING, False)


@given(triggers, st.data())
def test_what_is_remembered_is_still_known(trigger: Trigger, data: st.DataObject) -> None:
    paths = [path for path, _ in iterate_leaves(trigger)]
    seen, _ = mark_fired(trigger, NOTHING, data.draw(st.sets(st.sampled_from(paths))))
    assert filter_seen(trigger, seen) == seen


def test_what_a_rewritten_trigger_no_longer_has_is_forgotten() -> None:
    seen, _ = mark_fired(sf.all_of(HOURLY, CALL, HOURLY), NOTHING, ["0", "2"])
    assert filter_seen(sf.all_of(CALL, HOURLY), seen) == {"0"}
    assert filter_seen(sf.any_of(CALL, HOURLY, CALL), seen) == NOTHING
    assert filter_seen(CALL, seen) == NOTHING
