"""The pool's instances: those of an earlier supervisor, and those that answer with an error."""

from __future__ import annotations

import selectors
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from scanflow.backends.local.services.control.channel import Channel
from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.supervisor.attempts import Template
from scanflow.backends.local.services.supervisor.instance_metrics import ServiceMetrics
from scanflow.backends.local.services.supervisor.pool import InstancePool
from scanflow.backends.local.services.supervisor.reconcile import SILENT_S, START_S, PoolTarget, reconcile
from scanflow.backends.run_records import DeviceUse
from scanflow.instance_messages import ControlMessage, encode
from scanflow.placement.place import Grant

NOW, AGE_S = 2000.0, 1000.0
TARGET = PoolTarget(spec_hash="a", count=1, serves=1, cores=1.0, deadline_s=30.0, changing=False)


@pytest.fixture
def pool(tmp_path: Path) -> InstancePool:
    """The pool of a supervisor that adopts an instance, 1000 s old, before it answers."""
    folder = ServiceFolder(tmp_path / "services" / "w")
    attempt = folder.get_attempts_folder("1") / "1"
    attempt.mkdir(parents=True)
    (attempt / "alive").touch()
    (attempt / "template.json").write_bytes(encode(Template("a", 1.0, Grant(cpus=(), memory_nodes=()))))
    (attempt / "started").write_text('{"pid": 1, "birth": "", "began": 5000}')
    shims, desired = Mock(adopt=Mock(return_value=None)), Mock()
    desired.definition.spec_hash, desired.definition.shape.gpu = "a", 0
    pool = InstancePool(folder, shims, ServiceMetrics(folder.counted), selectors.DefaultSelector(), Mock())
    pool.adopt(desired, NOW, 5000 + AGE_S)
    return pool


def list_actions(target: PoolTarget, pool: InstancePool, now: float) -> list[str]:
    return [f"{action.kind} {action.name}" for action in reconcile(target, pool.instances, now)]


def test_an_old_instance_has_the_time_of_a_start_to_answer_its_next_supervisor(pool: InstancePool) -> None:
    (instance,) = pool.instances
    assert (instance.phase, instance.began) == ("starting", NOW - AGE_S)
    assert list_actions(TARGET, pool, NOW + START_S - 1) == []
    assert list_actions(TARGET, pool, NOW + START_S + 1) == ["kill 1"]


def test_an_adopted_instance_is_not_replaced_before_it_says_whether_it_serves(pool: InstancePool) -> None:
    (instance,) = pool.instances
    target = replace(TARGET, spec_hash="b")
    assert list_actions(target, pool, NOW) == []
    assert list_actions(target, pool, NOW + SILENT_S) == ["end 1", "start 2"]
    instance.update_state({"ready": True, "generation": 1}, NOW)
    assert list_actions(target, pool, NOW) == ["start 2"]


def test_metrics_of_gpus_end_with_the_instances_that_had_them(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path / "services" / "w")
    metrics = ServiceMetrics(folder.counted)
    pool = InstancePool(folder, Mock(), metrics, selectors.DefaultSelector(), Mock())
    metrics.report_devices("w", [DeviceUse(number=0, uuid="GPU-0", sharing="exclusive", busy_share=0.5)])
    assert metrics.sum_others("1") == [["scanflow_gpu_busy_share", {"service": "w", "uuid": "GPU-0"}, 0.5]]
    pool.watch_devices(NOW)
    assert metrics.sum_others("1") == []


def test_an_instance_that_answers_with_an_error_is_not_silent(
    pool: InstancePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (instance,) = pool.instances
    channel: Any = Mock(is_awaiting=Mock(return_value=False))
    error = (ControlMessage(kind="state"), {"error": "[Errno 24] Too many open files"})
    channel.receive_answers.return_value = ([error], True)
    monkeypatch.setattr(Channel, "connect", Mock(return_value=channel))
    pool.poll(NOW, eager=False, serving=False)
    instance.update_state({"ready": True, "generation": 1}, NOW)
    monkeypatch.setattr(time, "monotonic", lambda: NOW + SILENT_S)
    _, receive = channel.watch.call_args.args
    receive()
    assert list_actions(TARGET, pool, NOW + SILENT_S + 1) == []
    assert instance.phase == "ready"
