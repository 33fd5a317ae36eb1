"""Settings that are read from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, SecretStr, ValidationError

from scanflow.errors import InvalidError

M = TypeVar("M", bound=BaseModel)


def read_settings(
    model: type[M],
    variables: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    *,
    given: Mapping[str, Any] | None = None,
) -> M:
    """Return settings with each field from its variable; an unset or empty variable keeps the default.

    Args:
        model: The settings' model.
        variables: The name of each field's variable.
        environ: Where the variables are; None: this process' own.
        given: Fields that are known already, which no variable changes; None and an empty text count as not given.

    Raises:
        InvalidError: A variable has no usable value; a secret's is not shown.
    """
    source = os.environ if environ is None else environ
    values: dict[str, Any] = {field: text for field, name in variables.items() if (text := source.get(name, ""))}
    fixed = {field: value for field, value in (given or {}).items() if value not in (None, "")}
    try:
        return model.model_validate(values | fixed)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        shown = "" if _is_secret(model, field) else f"={first['input']!r:.60}"
        raise InvalidError(
            f"The environment variable {variables.get(field, field)}{shown} is invalid: "
            f"{first['msg'].removeprefix('Value error, ').rstrip('.')}. "
            "Change it, or unset it."
        ) from error


def list_variables(model: type[BaseModel], prefix: str) -> dict[str, str]:
    """Return the variable of each field: its name in capitals after ``prefix``."""
    return {field: f"{prefix}{field.upper()}" for field in model.model_fields}


def _is_secret(model: type[BaseModel], field: str) -> bool:
    return field in model.model_fields and SecretStr.__name__ in str(model.model_fields[field].annotation)


CONNECTION_VARIABLES: Final[Mapping[str, str]] = {
    "SCANFLOW_TLS_CA": "A file of certificate authorities, in PEM, that clients trust beside the system's. Unset: the "
    "home's own authority.",
    "SCANFLOW_TLS_CLIENT_CERT": "The certificate, in PEM, that clients show to services that ask for one. Unset: none.",
    "SCANFLOW_TLS_CLIENT_KEY": "The private key of that certificate, in PEM. Unset: the file beside the certificate "
    "whose name ends in `.key`.",
    "SCANFLOW_TLS_CRL": "The list of revoked certificates, in PEM, that servers and services refuse. Unset: the "
    "list of the home's own authority.",
    "SCANFLOW_SERVICE_TOKEN": "The token that `scanflow predict`, `scanflow load` and the Python client send to "
    "services with `sf.Serving(auth=...)`. Unset: none.",
}
"""Variables that every program reads where it connects, beside those of its settings: meaning of each."""

PROCESS_VARIABLES: Final[Mapping[str, str]] = {
    "SCANFLOW_APP": "The name of the application. Set for steps, instances and MPI ranks.",
    "SCANFLOW_TEAM": "The team of the application. Set for steps, instances and MPI ranks.",
    "SCANFLOW_WORKFLOW": "The name of the workflow. Set for steps and instances.",
    "SCANFLOW_RUN": "The name of the run. Set for steps and MPI ranks.",
    "SCANFLOW_STEP": "The name of the step. Set for steps.",
    "SCANFLOW_TASK": "The name of the task: the step, or `STEP.NUMBER` for an item of a fan-out. Set for steps.",
    "SCANFLOW_OUTPUT_DIR": "The folder for the files that the step leaves to later steps. Set for steps and MPI ranks.",
    "SCANFLOW_INSTANCE": "The name of the instance. Set for instances on one machine.",
    "SCANFLOW_THREADS": "The number of threads for a library that has no variable of its own, such as ONNX "
    "Runtime. Set for instances.",
    "SCANFLOW_GPU_SHARE": "The share of a GPU that the process has, above 0 and below 1. Not set: whole GPUs, or "
    "parts.",
    "SCANFLOW_GPU_MEMORY_BYTES": "The memory, in bytes, that the process may use of each of its GPUs.",
    "SCANFLOW_MPI_RANK": "The rank of the process in its MPI job, from 0. Set for MPI ranks on one machine.",
}
"""Variables that steps, instances and MPI ranks find set: meaning of each."""

INTERNAL_VARIABLES: Final = (
    "SCANFLOW_DEVICES_OF", "SCANFLOW_MPI_PROFILE", "SCANFLOW_MPI_SHELL", "SCANFLOW_OUTPUTS_STORE",
    "SCANFLOW_PEER_TOKEN", "SCANFLOW_REGISTRY_URI", "SCANFLOW_SECRETS_FD", "SCANFLOW_SECRET_",
)  # fmt: skip
"""Variables between Scanflow's own processes: no setting, and not for users. ``SCANFLOW_SECRET_`` is a prefix."""
