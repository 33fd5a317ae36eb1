"""The sensor, the rule, the actuator, the strategy and the primitive, each without a server."""

from scanflow.agent import Event
from scanflow.agent.primitive_model import PrimitiveContext, SavedApplication

import app
import medic
import watcher
from my_app_primitives import SetTimeout

FAILURE = Event(
    at=0,
    type="run.failed",
    subject="run/r1",
    data={"error": "work: timed out after 2.00 s"},
)


class Store:
    """Keeps one application, as the server does."""

    def __init__(self, application):
        self.application = application

    def get(self, app, team):
        return SavedApplication(self.application)

    def change(self, app, team, make):
        self.application = make(self.application)
        return self.get(app, team)


def test_a_timeout_is_reported_and_another_failure_is_not():
    assert watcher.is_timeout(watcher.read_failure(FAILURE))
    assert not watcher.is_timeout({"run": "r1", "error": "ValueError: 3"})


def test_the_medic_is_called_with_the_run():
    call = watcher.call_medic.call({"run": "run/r1", "error": "timed out"})
    assert (call.agent, call.sensor, call.kwargs["run"]) == (
        "medic",
        "examine",
        "run/r1",
    )


def test_the_medic_sets_the_timeout_and_runs_the_workflow():
    assert [act.primitive for act in medic.treatment.actions] == [
        "set_timeout",
        "run_workflow",
    ]


def test_the_timeout_is_set_and_can_be_taken_back():
    application = app.app
    store = Store(application)
    context = PrimitiveContext(
        deployer=None,
        applications=store,
        runs=None,
        app=application.name,
        team=application.team,
    )
    result = SetTimeout("nightly", step="work", seconds=20).carry_out(context)
    assert store.application.workflow("nightly").node("work").timeout_s == 20
    assert result.inverse.arguments["seconds"] == 2
