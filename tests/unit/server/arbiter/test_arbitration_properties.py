from __future__ import annotations

import random
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from scanflow.agent.agent_records import Action, Intent
from scanflow_server.arbiter.arbitration import arbitrate_all
from scanflow_server.arbiter.arbitration_rules import ArbitrationContext, Owner
from scanflow_server.intent_identity import list_common_fields
from tests.unit.server.arbiter.intent_builders import action, arbitrate, intent

FIELDS = ("model", "replicas", "traffic")


@st.composite
def intents(draw: st.DrawFn) -> list[Intent]:
    count = draw(st.integers(1, 6))
    return [
        intent(
            f"i{number}",
            agent=draw(st.sampled_from(["planner", "checker"])),
            strategy=draw(st.sampled_from("abc")),
            arguments={"instances": draw(st.integers(1, 4))},
            fields=tuple(draw(st.sets(st.sampled_from(FIELDS), min_size=1))),
            priority=draw(st.integers(-1, 2)),
            autonomy=draw(st.sampled_from(["auto", "auto", "auto", "approve", "suggest", "observe"])),
            cool_down_s=draw(st.sampled_from([0.0, 5.0])),
            hysteresis_s=draw(st.sampled_from([0.0, 5.0])),
            budget=draw(st.sampled_from([None, 0, 1, 2])),
            budget_window_s=10.0,
            key=draw(st.sampled_from(["k1", "k2", "k3", f"own{number}"])),
            at=draw(st.sampled_from([100.0, 101.0])),
        )
        for number in range(count)
    ]


owners = st.dictionaries(
    st.sampled_from(FIELDS),
    st.builds(
        Owner,
        strategy=st.sampled_from(["tests/mnist/planner/a", "tests/mnist/checker/b", "x/y/z/w"]),
        intent=st.just("before"),
        priority=st.integers(-1, 2),
        until=st.sampled_from([90.0, 150.0]),
        lives=st.booleans(),
    ),
)
values = st.dictionaries(st.sampled_from(FIELDS), st.integers(1, 2))


@given(wanted=intents(), owned=owners, observed=values, written=values, seed=st.integers())
def test_the_order_of_arrival_decides_nothing(
    wanted: list[Intent], owned: dict[str, Owner], observed: dict[str, int], written: dict[str, int], seed: int
) -> None:
    context = ArbitrationContext(now=102.0, owners=owned, observed=observed, last_written=written)
    decided = arbitrate_all(wanted, context)
    mixed = list(wanted)
    random.Random(seed).shuffle(mixed)
    assert arbitrate_all(mixed, context) == decided


@given(wanted=intents(), owned=owners, observed=values, written=values)
def test_every_intent_is_decided_on_with_the_reason(
    wanted: list[Intent], owned: dict[str, Owner], observed: dict[str, int], written: dict[str, int]
) -> None:
    decided = arbitrate_all(
        wanted, ArbitrationContext(now=102.0, owners=owned, observed=observed, last_written=written)
    )
    assert decided.keys() == {intent.id for intent in wanted}
    ids = {intent.id for intent in wanted} | {"before"}
    for id, decision in decided.items():
        assert decision.intent == id
        assert decision.reason.endswith(".")
        assert decision.winner is None or decision.winner in ids - {id}


@given(wanted=intents(), owned=owners)
def test_a_field_has_at_most_one_winner_and_a_key_at_most_one_action(
    wanted: list[Intent], owned: dict[str, Owner]
) -> None:
    decided = arbitrate_all(wanted, ArbitrationContext(now=102.0, owners=owned))
    winners = [intent for intent in wanted if decided[intent.id].verdict in {"act", "queue"}]
    for first, other in combinations(winners, 2):
        assert list_common_fields(first, other) == ()
        assert first.key != other.key


@given(
    wanted=st.lists(st.tuples(st.integers(0, 40).map(float), st.sampled_from("ab"), st.integers(0, 9)), max_size=30),
    budget=st.integers(0, 3),
)
def test_no_window_ever_has_more_actions_than_the_budget(wanted: list[tuple[float, str, int]], budget: int) -> None:
    history: list[Action] = []
    for number, (now, strategy, key) in enumerate(sorted(wanted)):
        proposal = intent(
            f"i{number}", strategy=strategy, budget=budget, budget_window_s=10.0, key=f"{strategy}{key}", at=now
        )
        decision = arbitrate(proposal, now=now, history=history)
        if decision.verdict != "duplicate":
            history.append(action(proposal, began=now).model_copy(update={"decision": decision}))
    acts = [entry for entry in history if entry.decision.verdict == "act"]
    for act in acts:
        began = act.decision.at
        same = [other for other in acts if other.intent.strategy == act.intent.strategy]
        assert sum(began <= other.decision.at < began + 10.0 for other in same) <= budget
    keys = [act.intent.key for act in acts]
    assert len(keys) == len(set(keys))


@given(
    wanted=st.lists(st.tuples(st.integers(0, 40).map(float), st.sampled_from("ab")), max_size=30),
    cool_down=st.sampled_from([1.0, 7.0]),
)
def test_a_strategy_never_begins_two_actions_within_its_cool_down(
    wanted: list[tuple[float, str]], cool_down: float
) -> None:
    history: list[Action] = []
    for number, (now, strategy) in enumerate(sorted(wanted)):
        proposal = intent(f"i{number}", strategy=strategy, cool_down_s=cool_down, at=now)
        decision = arbitrate(proposal, now=now, history=history)
        history.append(action(proposal, began=now).model_copy(update={"decision": decision}))
    for name in "ab":
        acts = [
            entry.decision.at for entry in history if entry.decision.verdict == "act" and entry.intent.strategy == name
        ]
        assert all(later - earlier >= cool_down for earlier, later in pairwise(acts))
