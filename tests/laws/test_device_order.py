"""Who came later takes no GPU from one that waits, in whatever order they ask again; and nobody waits forever."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from operator import eq
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.backends.device_claims import HomeDevices
from scanflow.placement.device_grants import DeviceDemand, DeviceGrant
from scanflow.testing.accelerators import FakeAccelerators, make_gpu, make_mig_gpu

N_GPUS = 3
WHOLE = st.integers(1, N_GPUS).map(lambda count: DeviceDemand(count=count))
SHARE = st.sampled_from([0.25, 0.3, 0.5, 0.75]).map(lambda share: DeviceDemand(share=share))
PART = st.just(DeviceDemand(profile="1g.10gb"))
RANKS = st.integers(2, 6).map(lambda copies: DeviceDemand(share=0.5, copies=copies))


class Queue:
    """Attempts of several runs on one machine; each asks when the test lets it ask, as processes do."""

    def __init__(
        self, home: Path, demands: list[DeviceDemand], is_comparable: Callable[[DeviceDemand, DeviceDemand], bool]
    ) -> None:
        machine = FakeAccelerators(*map(make_gpu, range(N_GPUS)), make_mig_gpu(N_GPUS, "1g.10gb", 2))
        self.home, self.devices = home, HomeDevices(home, lambda: machine)
        self.demands, self.is_comparable = demands, is_comparable
        self.waiting = set[int]()
        self.running: dict[int, tuple[DeviceGrant, ...]] = {}
        self.started = list[int]()

    def ask(self, number: int) -> None:
        self.waiting.add(number)
        folder = self.home / str(number)
        taken = self.devices.take(folder, f"run-{number}", self.demands[number], since=float(number))
        if isinstance(taken, str):
            return
        self.waiting.discard(number)
        self.running[number] = taken
        self.started.append(number)
        self.check()
        for earlier in sorted(self.waiting):
            if earlier < number and self.is_comparable(self.demands[earlier], self.demands[number]):
                self.ask(earlier)
                assert earlier not in self.waiting, f"{number} was granted what {earlier} waits for"

    def end(self, number: int) -> None:
        del self.running[number]
        self.devices.release(self.home / str(number))

    def check(self) -> None:
        """Nothing is given twice: at most one whole, or shares of one in all, of each."""
        sums = defaultdict[str, float](float)
        for grants in self.running.values():
            for grant in grants:
                sums[grant.uuid] += grant.share
        assert all(share <= 1 + 1e-6 for share in sums.values()), sums


def play(queue: Queue, data: st.DataObject) -> list[int]:
    """Let attempts come in order, ask again in any, and end in any; return the order in which they started."""
    come, number_of = 0, len(queue.demands)
    for _ in range(data.draw(st.integers(0, 4 * number_of))):
        choices = [("ask", number) for number in sorted(queue.waiting)]
        choices += [("end", number) for number in sorted(queue.running)]
        choices += [("ask", come)] if come < number_of else []
        if choices:
            what, number = data.draw(st.sampled_from(choices))
            come += number == come
            (queue.ask if what == "ask" else queue.end)(number)
    for number in range(come, number_of):
        queue.ask(number)
    for _ in range(number_of):  # each round one more can start: whoever never does waits forever
        for number in sorted(queue.running):
            queue.end(number)
        for number in data.draw(st.permutations(sorted(queue.waiting))):
            if number in queue.waiting:
                queue.ask(number)
    return queue.started


@pytest.fixture(autouse=True)
def no_outer_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCANFLOW_DEVICES_OF", raising=False)


@settings(max_examples=60, deadline=None)
@given(demands=st.lists(WHOLE, max_size=8), data=st.data())
def test_whole_gpus_go_to_who_came_first_however_many_each_needs(
    demands: list[DeviceDemand], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        assert sorted(play(Queue(Path(folder), demands, lambda *_: True), data)) == list(range(len(demands)))


@settings(max_examples=60, deadline=None)
@given(demands=st.lists(WHOLE | SHARE | PART | RANKS, max_size=8), data=st.data())
def test_of_equal_requests_the_first_goes_first_and_none_waits_forever(
    demands: list[DeviceDemand], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        assert sorted(play(Queue(Path(folder), demands, eq), data)) == list(range(len(demands)))
