from __future__ import annotations

import weakref

from hypothesis import given
from hypothesis import strategies as st

from scanflow.backends.run_records import RunRecord
from scanflow.deployer import masked_deployer
from scanflow.deployer.masked_deployer import MaskedRuns, mask_run
from scanflow.names import RunName
from scanflow.text.masking import Masker

PASSWORD = "zq-hidden-71"
MASKER = Masker({"password": PASSWORD})

RECORDS = st.builds(
    RunRecord,
    name=st.sampled_from(["bold-cat", "calm-dog"]).map(RunName),
    app=st.just("digits"),
    team=st.just("default"),
    workflow=st.just("train"),
    state=st.sampled_from(["running", "failed"]),
    created=st.just(0.0),
    seconds=st.sampled_from([None, 1.0, 2.0]),
    error=st.sampled_from([None, f"cannot log in with {PASSWORD}", f"{PASSWORD} again"]),
)


@given(st.lists(RECORDS, max_size=12))
def test_a_listed_run_is_mmechanism_a_shown_one_however_it_changed_since(records: list[RunRecord]) -> None:
    runs = MaskedRuns(lambda _run: MASKER)
    assert [runs.mask(record) for record in records] == [mask_run(record, lambda: MASKER) for record in records]


def test_the_definition_of_a_listed_run_is_read_once() -> None:
    loaded: list[str] = []

    def load_masker(run: str) -> Masker:
        loaded.append(run)
        return MASKER

    runs = MaskedRuns(load_masker)
    failed = RunRecord(
        name=RunName("bold-cat"), app="a", team="t", workflow="w", state="failed", created=0.0, error=f"{PASSWORD}?"
    )
    other = failed.model_copy(update={"name": RunName("calm-dog")})
    texts = {runs.mask(record).error for record in [failed, other] * 20}
    assert (loaded, texts) == (["bold-cat", "calm-dog"], {"***?"})


def test_only_so_many_listed_runs_stay_in_memory() -> None:
    runs = MaskedRuns(lambda _run: MASKER)
    failed = RunRecord(name=RunName("r"), app="a", team="t", workflow="w", state="failed", created=0.0, error="no")
    masked = [
        weakref.ref(runs.mask(failed.model_copy(update={"name": RunName(f"r-{number}"), "error": PASSWORD})))
        for number in range(3 * masked_deployer.MAX_RUNS)
    ]
    assert 0 < sum(record() is not None for record in masked) <= masked_deployer.MAX_RUNS
