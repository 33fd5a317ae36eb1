"""``scanflow topology`` as a person meets it, and the drawing it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from scanflow.app.resources import AffinityMode
from scanflow.backends.service_records import InstanceRecord, ServiceRecord, Shape
from scanflow.placement.topology import Core, NumaNode, Topology, load, save, uniform
from scanflow_client.cli.command_tree import app
from scanflow_client.formatting.topology_text import Occupant, describe_topology, draw_topology, format_legend
from tests.conftest import Cli
from tests.unit.placement.test_topology import MACHINES
from tests.unit.placement.trees import write, write_machine

EPYC = """\
An EPYC: 1 socket, 1 NUMA node, 8 cores, 16 CPUs (up to 2 siblings a core), 64.0 GiB
This process may use all of it: 16 CPUs.

socket 0 · node 0 (64.0 GiB) · 8 cores · 2 L3 of 16.0 MiB
   0a  1a  2·  3· │  4b  5b  6·  7·
   8·  9· 10· 11· │ 12· 13· 14· 15·

· free. A column is a core, its siblings one below the other. Cores between bars share an L3.
cpumem: each instance has exclusive CPUs in one socket, and that socket's memory.
a  instance 1: CPUs 0-1 of socket 0, one L3 of 16Mi; siblings 8-9 left idle
b  instance 2: CPUs 4-5 of socket 0, one L3 of 16Mi; siblings 12-13 left idle
"""


@pytest.fixture
def epyc(tmp_path: Path) -> Path:
    path = tmp_path / "epyc.json"
    save(uniform(1, 8, 2, l3_group=4, title="An EPYC"), path)
    return path


def test_this_machine_is_drawn(quick_cli: Cli) -> None:
    done = quick_cli("topology")
    assert done.returncode == 0, done.stderr
    assert "socket 0" in done.stdout
    assert "· free." in done.stdout


def test_a_plan_is_drawn_on_another_machine(quick_cli: Cli, epyc: Path, tmp_path: Path) -> None:
    done = quick_cli("topology", "--from", str(epyc), "--instances", "2", "--cores", "2", "--affinity", "CPUMEM")
    assert done.stdout == EPYC
    saved = quick_cli("topology", "--from", str(epyc), "--save", "copy.json")
    assert "Show it on any machine: scanflow topology --from copy.json" in saved.stdout
    assert load(tmp_path / "copy.json") == load(epyc)
    done = quick_cli("topology", "--from", str(epyc), "-n", "2", "--cores", "500m", "--affinity", "cpu", "--json")
    document = json.loads(done.stdout)
    assert (document["effective_cpus"], document["effective_count"]) == (list(range(16)), 16)
    first, second = document["placement"]
    assert (first["cpus"], first["cores"], first["threads"]["OMP_NUM_THREADS"], second["cpus"]) == ([0], 0.5, "1", [0])
    (tmp_path / "told.json").write_text(done.stdout)
    assert load(tmp_path / "told.json") == load(epyc)


def test_a_copied_tree_is_shown(quick_cli: Cli, tmp_path: Path) -> None:
    write_machine(tmp_path / "there/sys", uniform(2, 4))
    write(tmp_path / "there/sys/fs/cgroup", {"cpuset.cpus.effective": "1-5", "cpu.max": "200000 100000"})
    done = quick_cli("topology", "--sysfs", "there")
    assert "This process may use 2 CPUs (affinity mask or cpuset: CPUs 1-5; CPU quota: 2)." in done.stdout
    assert "  0× 1· 2· 3·\n" in done.stdout
    assert "× not allowed for this process" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "nothing.json"], "cannot be read: No such file or directory. Write one on that machine"),
        (["--sysfs", "nothing"], "'nothing' describes no machine"),
        (["--from", "a", "--sysfs", "b"], "Leave one out"),
        (["-n", "1", "--affinity", "cpux"], "affinity 'cpux' is not known. Did you mean 'cpu'?"),
        (["-n", "1", "--order", "apar"], "--order 'apar' is not known. Did you mean 'apart'?"),
        (["-n", "1", "--cores", "many"], "cpu 'many' cannot be read"),
        (["-n", "1", "--cores", "5000"], "An instance of 5000 cores cannot be placed"),
        (["--save", "missing/file.json"], "cannot be written to 'missing/file.json'"),
    ],
)
def test_what_cannot_be_shown_says_why(quick_cli: Cli, arguments: list[str], message: str) -> None:
    done = quick_cli("topology", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def service(name: str, affinity: AffinityMode, *instances: InstanceRecord) -> ServiceRecord:
    owner = {"app": "shop", "team": "data", "state": "ready", "url": "", "generation": 1}
    shape = Shape(affinity=affinity)
    return ServiceRecord.model_validate({"name": name, **owner, "shape": shape, "instances": instances})


class Deployed:
    def services(self) -> list[ServiceRecord]:
        runs = InstanceRecord(instance="1", state="ready", cores=1.0).with_details(cpus=[1])
        gone = InstanceRecord(instance="2", state="failed").with_details(cpus=[0])
        return [service("digits", "cpumem", runs, gone), service("letters", "any", runs)]


@pytest.fixture
def cli_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    (tmp_path / "services").mkdir()
    monkeypatch.setenv("SCANFLOW_HOME", str(tmp_path))
    monkeypatch.setattr("scanflow.deployer.EmbeddedDeployer", lambda _settings: Deployed())
    monkeypatch.setattr("scanflow.placement.sysfs.read_topology", lambda: uniform(1, 3))
    return CliRunner()


def test_running_instances_are_drawn_where_they_sit(cli_runner: CliRunner) -> None:
    output = cli_runner.invoke(app, ["topology"]).stdout
    assert "\n  0· 1a 2·\n" in output
    assert "a  digits/1, letters/1: CPU 1\n" in output
    (first, *_) = json.loads(cli_runner.invoke(app, ["topology", "--json"]).stdout)["services"]
    assert first == {"service": "digits", "instance": "1", "cpus": [1], "memory_nodes": []}


def test_a_plan_goes_around_them(cli_runner: CliRunner) -> None:
    output = cli_runner.invoke(app, ["topology", "-n", "2", "--affinity", "cpu"]).stdout
    assert "\n  0b 1a 2c\n" in output
    assert "a  digits/1, letters/1: CPU 1\n" in output
    assert "c  instance 2: CPU 2 of socket 0" in output
    full = cli_runner.invoke(app, ["topology", "-n", "3", "--affinity", "cpu"])
    assert "2 cores of them are left by other services. Write at most instances=2" in str(full.exception)


@given(MACHINES, st.integers(20, 200))
def test_every_cpu_is_drawn_once_whatever_the_width(described: Topology, width: int) -> None:
    lines = [line for panel in draw_topology(described, [], width=width) for line in panel.lines]
    cells = [int(cell) for line in lines for cell in re.findall(r"(\d+)[·×]", line)]
    assert sorted(cells) == list(described.cpus)
    assert all(len(line) <= max(width, 8) for line in lines)


def test_cpus_of_several_are_marked_so() -> None:
    seated = [Occupant("a", "one", (0, 1)), Occupant("b", "two", (1,))]
    panel = draw_topology(uniform(1, 3), seated, width=80)[0]
    assert panel.lines == ("0a 1+ 2·",)
    assert format_legend(uniform(1, 3), seated) == "· free  + several."


def test_an_odd_machine_is_described_in_text() -> None:
    odd = Topology(
        cores=(Core(cpus=(0, 1)), Core(cpus=(2,), tier=1)),
        nodes=(NumaNode(cpus=(0, 1, 2), memory_bytes=2**30), NumaNode(id=1, memory_bytes=2**34)),
        offline=(3,),
        memory_limit_bytes=2**29,
    )
    assert describe_topology(odd)[2:] == ["Memory limit: 512.0 MiB.", "Offline: CPU 3.", "Slower cores: CPU 2."]
    panels = draw_topology(odd, [], width=80)
    assert [panel.title for panel in panels] == ["socket 0 · node 0 (1.0 GiB) · 2 cores", "memory without CPUs"]
    assert panels[0].lines == ("0· 2·", "1·")
