"""Metrics, of one instance and of a service."""

from __future__ import annotations

from scanflow_serving.serving_metrics import Metrics, RevisionMetrics


def busy() -> Metrics:
    metrics = Metrics("shop")
    revision_metrics = RevisionMetrics(metrics, "r1")
    revision_metrics.count_response(200, 0.002)
    revision_metrics.count_response(500, 0.2)
    revision_metrics.make_node_metrics("model").seconds.observe(0.001)
    revision_metrics.make_node_metrics("model").failed.value += 1
    revision_metrics.make_node_metrics("model").rows.observe(8)
    metrics.count("scanflow_refused", reason="queue")
    metrics.count("scanflow_in_flight", 3)
    metrics.count("scanflow_recorded", 5)
    metrics.count("scanflow_dropped", 2)
    return metrics


def text(metrics: Metrics, *others: Metrics) -> str:
    body, kind = metrics.render([sample for other in others for sample in other.collect_samples()])
    assert kind.startswith("text/plain")
    return body.decode()


def test_two_instances_are_counted_together() -> None:
    exposition = text(busy(), busy())
    for line in (
        'scanflow_requests_total{code="200",revision="r1",service="shop"} 2.0',
        'scanflow_requests_total{code="500",revision="r1",service="shop"} 2.0',
        'scanflow_request_seconds_bucket{le="0.001",revision="r1",service="shop"} 0.0',
        'scanflow_request_seconds_bucket{le="0.003",revision="r1",service="shop"} 2.0',
        'scanflow_request_seconds_bucket{le="+Inf",revision="r1",service="shop"} 4.0',
        'scanflow_request_seconds_count{revision="r1",service="shop"} 4.0',
        'scanflow_node_errors_total{node="model",revision="r1",service="shop"} 2.0',
        'scanflow_batch_rows_sum{node="model",revision="r1",service="shop"} 16.0',
        'scanflow_refused_total{reason="queue",service="shop"} 2.0',
        'scanflow_recorded_total{service="shop"} 10.0',
        'scanflow_dropped_total{service="shop"} 4.0',
        'scanflow_in_flight{service="shop"} 6.0',
    ):
        assert line in exposition
    assert exposition.count("# TYPE scanflow_request_seconds histogram") == 1


def test_what_only_another_instance_counted_is_there_too() -> None:
    other = busy()
    other.count_custom("r1", [("model", {"type": "COUNTER", "key": "cats", "value": 2})])
    RevisionMetrics(other, "r2").count_response(200, 0.1)
    exposition = text(busy(), other)
    assert 'scanflow_requests_total{code="200",revision="r2",service="shop"} 1.0' in exposition
    assert 'scanflow_custom_cats_total{node="model",revision="r1",service="shop"} 2.0' in exposition


def test_gauges_of_components_are_not_added_up() -> None:
    def warm(degrees: float) -> Metrics:
        metrics = Metrics("shop")
        metrics.count_custom("r1", [("model", {"type": "GAUGE", "key": "degrees", "value": degrees})])
        metrics.count_custom(
            "r1", [("model", {"type": "COUNTER", "key": "degrees", "value": 1})]
        )  # it is a gauge already
        metrics.count_custom("r1", [("model", {"type": "TIMER", "key": "time", "value": 20})])
        return metrics

    exposition = text(warm(20), warm(30))
    assert 'scanflow_custom_degrees{node="model",revision="r1",service="shop"} 20.0' in exposition
    assert 'scanflow_custom_time_seconds_sum{node="model",revision="r1",service="shop"} 0.04' in exposition


def test_invalid_requests_are_counted_and_do_not_make_a_revision_look_fast() -> None:
    metrics = Metrics("shop")
    revision_metrics = RevisionMetrics(metrics, "r1")
    for status, seconds in ((200, 0.02), (400, 0.0001), (413, 0.0001), (422, 0.03), (499, 2.0), (504, 5.0)):
        revision_metrics.count_response(status, seconds)
    counts = {name: value for name, labels, value in metrics.collect_samples() if labels.get("le") is None}
    assert counts["scanflow_request_seconds_count"] == 4
    codes = [labels["code"] for name, labels, _ in metrics.collect_samples() if name == "scanflow_requests_total"]
    assert codes == ["200", "400", "413", "422", "499", "504"]
