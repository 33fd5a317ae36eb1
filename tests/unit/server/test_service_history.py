"""What is kept of services in memory: samples while something happens, and none while nothing does."""

from __future__ import annotations

from typing import Any

from scanflow.backends.service_records import CanaryPolicy, ServiceRecord
from scanflow_server.service_history import INTERVAL_S, MAX_SAMPLES, ServiceHistory

SCALING = {"metric": "rps", "target": 10.0, "max": 4}


def make_record(requests: int = 0, *, errors: int = 0, ready: int = 1, **changes: Any) -> ServiceRecord:
    revision = {"id": "r1", "requests": requests, "errors": errors, "buckets": [(0.01, requests)]}
    instances = [{"instance": str(number), "state": "ready", "in_flight": 3} for number in range(ready)]
    fields: dict[str, Any] = {
        "name": "digits",
        "app": "shop",
        "team": "data",
        "state": "ready",
        "url": "",
        "generation": 1,
        "created": 5.0,
        "shape": {"instances": 2},
        "ready": ready,
        "revisions": [revision],
        "instances": instances,
        "scaling": SCALING,
    }
    return ServiceRecord.model_validate({**fields, **changes})


def observe(history: ServiceHistory, *looks: tuple[float, ServiceRecord]) -> None:
    for at, record in looks:
        history.observe([record], at)


def test_a_sample_is_what_was_done_since_the_one_before() -> None:
    history = ServiceHistory()
    observe(history, (0.0, make_record()), (1.0, make_record(20)), (5.0, make_record(100, errors=10)))
    first, last = history.list_samples(make_record())
    assert (first.at, first.rate) == (0.0, 0.0)
    assert (last.at, last.rate, last.error_rate, last.load) == (5.0, 20.0, 2.0, 20.0)
    assert last.p99_s is not None
    assert 0 < last.p99_s < 0.01


def test_a_change_of_state_or_size_is_kept_at_once_and_an_idle_service_adds_nothing() -> None:
    history = ServiceHistory()
    observe(history, *((float(at), make_record()) for at in range(100)))
    assert [sample.at for sample in history.list_samples(make_record())] == [0.0]
    observe(history, (100.5, make_record(state="backup", ready=0)))
    samples = history.list_samples(make_record())
    assert [(sample.at, sample.state) for sample in samples] == [(0.0, "ready"), (95.0, "ready"), (100.5, "backup")]


def test_a_restart_that_was_over_before_it_was_seen_is_a_sample() -> None:
    history, restarted = ServiceHistory(), [{"instance": "0", "state": "ready", "restarts": 1}]
    observe(history, (0.0, make_record()), (1.0, make_record()), (2.0, make_record(instances=restarted)))
    assert [sample.at for sample in history.list_samples(make_record())] == [0.0, 2.0]


def test_what_autoscaling_goes_by_is_the_mean_of_the_ready_instances() -> None:
    for metric, load in (("queue", 3.0), ("rps", 5.0), ("cpu", None)):
        history, scaling = ServiceHistory(), {**SCALING, "metric": metric}
        looks = [make_record(requests, ready=2, scaling=scaling) for requests in (0, 50)]
        observe(history, (0.0, looks[0]), (INTERVAL_S, looks[1]))
        assert history.list_samples(looks[1])[-1].load == load, metric


def test_autoscaling_by_gpus_goes_by_the_mean_of_those_of_the_ready_instances() -> None:
    use = {"number": 0, "uuid": "GPU-0", "sharing": "exclusive", "memory_bytes": 80, "busy_share": 0.0, "used_bytes": 0}
    uses = [{**use, "busy_share": 0.9, "used_bytes": 20}], [{**use, "busy_share": 0.3, "used_bytes": 60}], [use]
    states = "ready", "ready", "starting"
    instances = [
        {"instance": str(number), "state": state, "devices": devices}
        for number, (state, devices) in enumerate(zip(states, uses, strict=True))
    ]
    for metric, load in (("gpu", 0.6), ("gpu_memory", 0.5)):
        history, scaling = ServiceHistory(), {**SCALING, "metric": metric, "target": 0.5}
        record = make_record(ready=2, scaling=scaling, instances=instances)
        observe(history, (0.0, record), (INTERVAL_S, record))
        assert history.list_samples(record)[-1].load == load, metric


def test_samples_are_bounded_and_another_deployment_has_its_own() -> None:
    history = ServiceHistory()
    observe(history, *((at * INTERVAL_S, make_record(at * at)) for at in range(MAX_SAMPLES + 50)))
    assert len(history.list_samples(make_record())) == MAX_SAMPLES
    assert history.list_samples(make_record(created=6.0)) == []
    history.observe([], 1e6)
    assert history.list_samples(make_record()) == []


def test_a_killed_instance_takes_no_requests_back() -> None:
    history = ServiceHistory()
    observe(history, (0.0, make_record(100)), (5.0, make_record(40)))
    assert all(sample.rate >= 0 for sample in history.list_samples(make_record()))


def test_a_canary_is_analysed_by_what_it_did_since_it_began() -> None:
    history, policy = ServiceHistory(), CanaryPolicy(metric="errors", after_requests=10, within_s=60.0)

    def make_both(current: int, canary: int, errors: int) -> ServiceRecord:
        other = {"id": "r2", "role": "canary", "requests": canary, "errors": errors}
        return make_record(revisions=[{"id": "r1", "requests": current, "errors": current // 10}, other])

    observe(history, (0.0, make_record(100)), (60.0, make_both(200, 4, 4)))

    def decide(record: ServiceRecord, *, after_s: float = 5.0) -> str | None:
        verdict = history.analyse_canary(record, policy, 60.0 + after_s)
        return None if verdict is None else verdict.decision

    assert decide(make_both(300, 13, 4)) == "wait", "it has answered 9 requests"
    assert decide(make_both(300, 13, 4), after_s=61.0) == "revert"
    assert decide(make_both(300, 104, 5)) == "promote", "its first errors were before anybody looked"
    assert decide(make_both(300, 104, 50)) == "revert"
    assert decide(make_record(100)) is None
    by_mean = policy.model_copy(update={"metric": "mean"})
    verdict = history.analyse_canary(make_both(300, 104, 5), by_mean, 65.0)
    assert verdict is not None
    assert verdict.decision == "wait", "no record says the mean latency"


def test_requests_a_state_and_a_service_that_is_gone_count_as_changes_and_an_idle_service_as_none() -> None:
    history, looks = ServiceHistory(), [make_record(), make_record(), make_record(1), make_record(1, ready=0)]
    changes = list[int]()
    for at, record in enumerate(looks):
        observe(history, (float(at), record))
        changes.append(history.changes)
    assert changes == [1, 1, 2, 3]
    history.observe([], 9.0)
    assert history.changes == 4
