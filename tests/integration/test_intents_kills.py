"""The engine is killed at random moments, again and again: nothing is lost and nothing is done twice."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from scanflow_server.arbiter.acting import MAX_ATTEMPTS
from scanflow_server.arbiter.intent_service import IntentService
from scanflow_server.store import intent_store as kept
from scanflow_server.store.base import Store, open_store
from scanflow_server.store.migrations import migrate
from tests.unit.server.arbiter.intent_builders import intent, permit
from tests.waiting import patient, wait_until

COUNT = 40
KILLS = MAX_ATTEMPTS - 1  # an action that is cut off more often is given up

PROGRAM = """
import sys, time
from pathlib import Path
from scanflow.agent.primitive_context import PrimitiveResult
from scanflow.agent.agent_records import PrimitiveCall
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.store.base import open_store
from tests.unit.server.arbiter.intent_builders import permit

address, folder = sys.argv[1], Path(sys.argv[2])

def perform(intent, call, key, noted, note):
    # A thing that is done by replacing a value, as those of services are: done when it is what is wanted.
    place = folder / str(call.arguments["workflow"])
    before = place.read_text() if place.exists() else "0"
    inverse = noted or PrimitiveCall(primitive=call.primitive, arguments={**call.arguments, "instances": int(before)})
    if noted is None:
        note(inverse)
    time.sleep(0.005)
    if before != str(call.arguments["instances"]):
        with (folder / "done.log").open("a") as log:
            log.write(f"{key}\\n")
        place.write_text(str(call.arguments["instances"]))
    time.sleep(0.005)
    return PrimitiveResult({"before": inverse.arguments["instances"]}, inverse)

engine = ArbiterEngine(open_store(address), perform, look=lambda intent: {}, limits=lambda _, intent: permit(intent))
engine.start()
print("started", flush=True)
time.sleep(100_000)
"""


def states(store: Store) -> Counter[str]:
    with store.read() as connection:
        return Counter(action.state for action in kept.list_actions(connection, limit=1000))


def has_enough(store: Store, enough: int) -> bool:
    return states(store)["succeeded"] >= enough


@pytest.mark.slow
def test_an_engine_that_is_killed_again_and_again_loses_nothing_and_repeats_nothing(home: Path, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'server.db'}"
    store = open_store(address)
    migrate(store)
    desk = IntentService(store, look=lambda _: {}, limits=lambda _, intent: permit(intent), clock=lambda: 1000.0)
    for number in range(COUNT):
        arguments = {"workflow": f"serve-{number}", "instances": 3}
        wanted = intent(f"i{number}", arguments=arguments, target=f"service/serve-{number}")
        assert desk.submit(wanted).verdict == "act"
    rng = random.Random(7)
    for kill in range(KILLS + 1):
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, address, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "started\n"
            enough = COUNT if kill == KILLS else min(COUNT, states(store)["succeeded"] + rng.randrange(1, 6))
            wait_until(partial(has_enough, store, enough), f"{enough} actions are done")
        finally:
            child.kill()
            child.wait(patient(60))
            child.stdout.close()
    assert states(store) == {"succeeded": COUNT}
    done = Counter((tmp_path / "done.log").read_text().split())
    assert done.keys() == {f"intent/i{number}" for number in range(COUNT)}
    # What was cut off between its log's line and its value is logged again; its value is the same, as is its inverse.
    assert all((tmp_path / f"serve-{number}").read_text() == "3" for number in range(COUNT))
    assert done.total() - COUNT <= 2 * KILLS
    with store.read() as connection:
        for action in kept.list_actions(connection, limit=1000):
            assert action.result == {"before": 0}
    store.close()
