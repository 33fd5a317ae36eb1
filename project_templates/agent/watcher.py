"""The agent `watcher`: a sensor, a rule, and an actuator, which calls another agent."""

import scanflow as sf
from scanflow.agent import actuator, sensor


@sensor(sf.on_event("run.failed", workflow="nightly"))
def read_failure(event):
    """Return the sample: which run failed, and why."""
    return {"run": event.subject, "error": event.data["error"] or ""}


def is_timeout(failure):
    return "timed out" in failure["error"]


@actuator(path="/sensors/examine", depender="medic")
def call_medic(failure):
    """Return the arguments of the call to the sensor `examine` of the agent `medic`."""
    return {"run": failure["run"]}


sf.Strategy(name="report", when=read_failure, if_=is_timeout, then=call_medic)
