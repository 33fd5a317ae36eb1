"""GPUs on a cluster: steps may have whole ones; what its device plugin cannot grant is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.batch.run_checks import check_definition
from scanflow.backends.run_definition import RunDefinition
from scanflow.errors import UnsupportedError


def check_step(**resources: Any) -> None:
    train = sf.Executor(name="train", mainfile="train.py", image="shop/train:1", resources=sf.Resources(**resources))
    workflow = sf.Workflow(name="nightly", nodes=[train])
    app = sf.Application(name="shop", team="people", workflows=[workflow])
    check_definition(RunDefinition(app, workflow), lambda _: False)


def test_a_step_may_have_whole_gpus() -> None:
    check_step(gpu=2)


@pytest.mark.parametrize(
    ("resources", "named"),
    [
        ({"gpu": 0.5}, r"resources.gpu=0.5, a share:"),
        ({"gpu": "1g.10gb"}, r"resources.gpu='1g.10gb', a MIG profile:"),
        ({"gpu": 1, "gpu_memory": "8Gi"}, r"resources.gpu_memory='8Gi':"),
    ],
)
def test_a_part_of_a_gpu_is_refused_by_name(resources: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"Executor 'train': the backend 'kubernetes' does not support {named}"):
        check_step(**resources)
