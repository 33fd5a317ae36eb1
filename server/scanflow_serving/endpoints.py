"""The endpoints of a service over HTTP: paths, protocols and meanings. :mod:`scanflow_serving.routes` serves them."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Protocol = Literal["Open Inference Protocol", "Seldon", "Scanflow"]


class Endpoint(NamedTuple):
    """An endpoint of a service."""

    method: str
    path: str
    """With ``{model}``: the name of the service, or of one of its nodes; and ``{version}``: a revision of the service,
    or a version of the node's model."""

    protocol: Protocol
    meaning: str


ENDPOINTS: Final = (
    Endpoint("GET", "/", "Scanflow", "Show the service, the instance that answers, and the names of its models."),
    Endpoint("GET", "/v2", "Open Inference Protocol", "Show the name and version of the server, and its extensions."),
    Endpoint("GET", "/v2/health/live", "Open Inference Protocol", "Report whether the instance is alive: 200 or 503."),
    Endpoint(
        "GET", "/v2/health/ready", "Open Inference Protocol", "Report whether the instance takes requests: 200 or 503."
    ),
    Endpoint("GET", "/healthz", "Scanflow", "Report the same as `/v2/health/live`."),
    Endpoint("GET", "/readyz", "Scanflow", "Report the same as `/v2/health/ready`."),
    Endpoint("GET", "/metrics", "Scanflow", "Return the metrics of all instances of the service, for Prometheus."),
    Endpoint(
        "POST", "/v2/repository/index", "Open Inference Protocol", "List the models, their versions and their states."
    ),
    Endpoint(
        "GET", "/v2/models/{model}", "Open Inference Protocol", "Describe the inputs, outputs and versions of a model."
    ),
    Endpoint("GET", "/v2/models/{model}/ready", "Open Inference Protocol", "Report whether a model is ready."),
    Endpoint(
        "POST", "/v2/models/{model}/infer", "Open Inference Protocol", "Predict; JSON, or tensors as binary data."
    ),
    Endpoint(
        "GET", "/v2/models/{model}/versions/{version}", "Open Inference Protocol", "Describe one version of a model."
    ),
    Endpoint(
        "GET",
        "/v2/models/{model}/versions/{version}/ready",
        "Open Inference Protocol",
        "Report whether one version of a model is ready.",
    ),
    Endpoint(
        "POST",
        "/v2/models/{model}/versions/{version}/infer",
        "Open Inference Protocol",
        "Predict with one version of a model.",
    ),
    Endpoint("POST", "/api/v1.0/predictions", "Seldon", "Predict; a Seldon message as JSON."),
    Endpoint(
        "POST", "/api/v1.0/feedback", "Seldon", "Give the true answer, or a reward, to the components of a graph."
    ),
)
"""Each ``GET`` endpoint answers ``HEAD`` too."""
