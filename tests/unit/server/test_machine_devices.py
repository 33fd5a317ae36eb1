"""The machine's GPUs on pages: how full each is, and by whom, for those who may know; nothing, where there are none."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.accelerators.accelerator_port import DeviceProcess, Inventory
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.run_records import RunRecord, RunState, TaskRecord
from scanflow.names import StepName
from scanflow.placement.device_grants import DeviceDemand
from scanflow.testing.accelerators import GIB, FakeAccelerators, make_gpu, make_mig_gpu
from scanflow_server.dashboard import run_pages
from scanflow_server.run_reader import RunReader
from scanflow_server.server_context import ServerContext
from tests.page_reader import PageReader
from tests.unit.server.page_browser import browsing
from tests.unit.server.server_rows import Api, enter_run
from tests.unit.server.test_service_pages import make_record

HEADING = "GPUs of this machine"
USE = {"number": 0, "uuid": "GPU-0", "name": "NVIDIA H100", "sharing": "mps", "share": 0.5, "memory_bytes": 40 * GIB}


@pytest.fixture
def machine(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> FakeAccelerators:
    """A machine with two GPUs, one of which is cut; services of two teams have shares of the other."""
    process = DeviceProcess(pid=4711, memory_bytes=2 * GIB, name="python")
    machine = FakeAccelerators(
        make_gpu(0, memory_used_bytes=2 * GIB, processes=(process,)), make_mig_gpu(1, "1g.10gb", 1)
    )
    context.devices = HomeDevices(context.settings.home, lambda: machine)
    instance = {"instance": "1", "state": "ready", "devices": [{**USE, "peak_bytes": 2 * GIB, "others": ["other 1"]}]}
    services = [
        make_record("digits", "data", instances=[instance], shape={"gpu": 0.5}),
        make_record("concealed", "others"),
    ]
    monkeypatch.setattr(context.deployer, "services", lambda **_: services)
    monkeypatch.setattr(context.deployer, "service", lambda _name: services[0])
    return machine


def take(context: ServerContext, folder: str, who: str, demand: DeviceDemand) -> None:
    taken = context.devices.take(context.settings.home / folder, who, demand)
    assert not isinstance(taken, str)


def test_who_has_a_gpu_is_said_to_those_who_may_see_it(
    api: Api, context: ServerContext, machine: FakeAccelerators
) -> None:
    machine.change(0, processes=())
    run = enter_run(context, workflow="w", team="data")
    take(context, "services/digits/instances/1/1", "digits/1", DeviceDemand(share=0.25))
    take(context, "services/concealed/instances/1/1", "concealed/1", DeviceDemand(share=0.5))
    take(context, f"environments/e/runs/{run}/steps/train/1", f"{run}/train", DeviceDemand(profile="1g.10gb"))
    texts = {"digits/1 (0.25 of it)": "/services/digits", f"{run}/train": f"/runs/{run}"}
    with browsing(api, "vic", "viewer", "data") as vic:
        page, text = vic.read("/"), vic.get("/")
        assert page.links.items() >= texts.items()
        assert "another team (0.5 of it)" in text
        assert "concealed" not in text
        for words in (HEADING, "GPU 0 NVIDIA H100 (80 GiB)", "2 GiB used", "cut into parts", "GPU 1 part 1, 1g.10gb"):
            assert words in text, words
        for column, value in {"use": "2 GiB used", "state": "granted"}.items():
            assert f'<td data-label="{column}">{value}</td>' in text
    with browsing(api, "ada", "admin") as ada:
        assert ada.read("/").links["concealed/1 (0.5 of it)"] == "/services/concealed"


def test_a_service_shows_the_gpus_of_its_instances_and_of_the_machine(
    api: Api, context: ServerContext, machine: FakeAccelerators
) -> None:
    with browsing(api, "vic", "viewer", "data") as vic:
        text = vic.get("/services/digits")
        use = "GPU 0 NVIDIA H100, 0.5 of it by MPS, used 2 GiB of 40 GiB, beside other 1"
        assert f'<td data-label="GPUs">{use}</td>' in text
        assert HEADING in text
        assert '<td data-label="state">not granted</td>' in text
        assert ", gpu=0.5 each, affinity any" in text
        assert "python 4711 (2 GiB)" in text


def test_a_service_shows_which_gpu_failed_and_what_an_instance_waits_for(
    api: Api, context: ServerContext, machine: FakeAccelerators, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = {"instance": "1", "state": "ready", "devices": [{**USE, "peak_bytes": GIB, "fault": "GPU is lost"}]}
    waits = {"instance": "2", "state": "waiting", "waits_for": "a GPU: GPU 1 is granted to other/1"}
    record = make_record("digits", "data", instances=[lost, waits], error="it was killed")
    monkeypatch.setattr(context.deployer, "service", lambda _name: record)
    with browsing(api, "vic", "viewer", "data") as vic:
        text = vic.get("/services/digits")
        assert "failed: GPU is lost</td>" in text
        assert '<td data-label="waits for">a GPU: GPU 1 is granted to other/1</td>' in text
        assert '<p class="wrong" role="alert">it was killed</p>' in text
        record = record.model_copy(update={"failed_change": 2})
        assert '<p class="wrong" role="alert">The last change failed: it was killed</p>' in vic.get("/services/digits")


def test_a_run_shows_the_gpus_of_the_machine_while_it_has_or_awaits_one(
    api: Api, context: ServerContext, machine: FakeAccelerators, monkeypatch: pytest.MonkeyPatch
) -> None:
    about: Any = {"name": "fox", "app": "shop", "team": "data", "workflow": "w", "created": 1.0}
    waiting = TaskRecord(task=StepName("fit"), step="fit", state="pending", waits_for="a GPU: GPU 0 is granted to x/1")
    with browsing(api, "vic", "viewer", "data") as vic:
        cases: list[tuple[RunState, tuple[TaskRecord, ...], bool]] = [
            ("running", (waiting,), True),
            ("running", (waiting.model_copy(update={"waits_for": None}),), False),
            ("stopped", (waiting,), False),
        ]
        for state, tasks, is_shown in cases:
            reader = RunReader(context, RunRecord(**about, state=state, tasks=tasks))
            monkeypatch.setattr(run_pages, "open_run", lambda _request, reader=reader: reader)
            assert (HEADING in vic.get("/runs/fox")) == is_shown, (state, tasks)


def test_where_there_is_no_gpu_nothing_is_said_of_any(
    api: Api, context: ServerContext, machine: FakeAccelerators
) -> None:
    context.devices = HomeDevices(context.settings.home, FakeAccelerators)
    with browsing(api) as ada:
        assert "GPU" not in ada.get("/")


def test_where_the_gpus_that_services_hold_cannot_be_read_the_reason_is_said(
    api: Api, context: ServerContext, machine: FakeAccelerators
) -> None:
    machine.change(0, processes=())
    take(context, "services/digits/instances/1/1", "digits/1", DeviceDemand(share=0.25))
    machine.inventory = Inventory(absence="The driver hangs.")
    with browsing(api) as ada:
        page = ada.get("/")
        assert "cannot be read: The driver hangs." in page


def test_a_page_is_shown_though_nobody_can_read_who_holds_what(
    api: Api, context: ServerContext, machine: FakeAccelerators
) -> None:
    claims = context.settings.home / "devices" / "claims.json"
    claims.parent.mkdir()
    claims.write_text("{")
    with browsing(api) as ada:
        page = ada.get("/")
        assert "which says who holds which GPU, cannot be read" in page
        PageReader(page)


def test_a_gpu_is_shown_as_it_is_when_the_page_is_rendered(
    api: Api, context: ServerContext, machine: FakeAccelerators
) -> None:
    with browsing(api) as ada:
        ada.get("/")
        machine.change(0, fault="GPU is lost")
        assert "failed: GPU is lost" in ada.get("/")
