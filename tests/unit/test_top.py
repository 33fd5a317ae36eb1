"""What runs now: what is read, what is shown of it where there is little room, and how it ends."""

from __future__ import annotations

import io
import os
import pty
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from rich.console import Console

from scanflow.agent.agent_records import AgentView, SensorReport
from scanflow.backends.run_records import RunRecord
from scanflow.backends.service_records import InstanceRecord, RevisionRecord, ServiceRecord, Shape
from scanflow.errors import UnavailableError, UnsupportedError
from scanflow.names import RunName
from scanflow.processes.proc_stat import read_busy_seconds
from scanflow_client.cli.top_command import show_readings, watch_keys
from scanflow_client.formatting.text_table import lay_out
from scanflow_client.formatting.top_text import draw_loads, format_top
from scanflow_client.top_reading import CpuLoad, TopReader, TopReading
from scanflow_client.top_screen import TopScreen

NOW = 1_790_000_000.0


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.setenv("TZ", "UTC")


def make_service(name: str = "digits", *cpus: tuple[int, ...]) -> ServiceRecord:
    instances = tuple(
        InstanceRecord(instance=str(number), state="ready", cpu_share=0.42, rss_bytes=2**27, in_flight=3).with_details(
            cpus=own
        )
        for number, own in enumerate(cpus, 1)
    )
    old = RevisionRecord(
        id="r1", models={"cnn": "models:/cnn/3"}, weight=0.9, requests=90, rps=9, p50_s=0.002, p95_s=0.004
    )
    new = old.model_copy(
        update={"id": "r2", "models": {"cnn": "models:/cnn/4"}, "weight": 0.1, "requests": 10, "errors": 2, "rps": 1.5}
    )
    copies = new.model_copy(update={"id": "r3", "shadow": True, "rps": 100, "errors": 50, "p95_s": 3})
    return ServiceRecord(
        name=name,
        app="mnist",
        team="data",
        state="ready",
        url="http://127.0.0.1:46700",
        generation=1,
        shape=Shape(instances=2),
        ready=len(cpus),
        instances=instances,
        revisions=(old, new, copies),
    )


def make_run(state: Any) -> RunRecord:
    return RunRecord(
        name=RunName(f"calm-{state}-1"), app="mnist", team="data", workflow="train", state=state, created=NOW - 90
    )


def make_agent(state: Any = "running", **fields: Any) -> AgentView:
    sensor = SensorReport(name="drift", trigger={}, last=NOW - 5, missed=1, errors=2)
    return AgentView(
        name="checker", app="mnist", team="data", state=state, started=NOW - 60, sensors=(sensor,), **fields
    )


class StandIn:
    """A deployer and a client in one."""

    def __init__(self) -> None:
        self.has_services = True

    def services(self) -> list[ServiceRecord]:
        if not self.has_services:
            raise UnsupportedError("No services here.")
        return [make_service("digits", (0,), (1,))]

    def runs(self, *, limit: int) -> list[RunRecord]:
        return [make_run("running"), make_run("failed"), make_run("interrupted")][:limit]

    def agents(self) -> list[AgentView]:
        return [make_agent(), make_agent("stopped")]


def make_reader(seconds: Iterator[Mapping[int, float]], step_s: float = 2.0, **options: Any) -> TopReader:
    now = [0.0]

    def tick() -> float:
        now[0] += step_s
        return now[0]

    stand_in: Any = StandIn()
    stand_in.has_services = options.pop("has_services", True)
    return TopReader(stand_in, stand_in.agents, read_cpus=lambda: next(seconds), clock=tick, **options)


def test_what_runs_is_read_and_how_long_each_cpu_was_busy_since_the_reading_before() -> None:
    reader = make_reader(iter([{0: 10.0, 1: 5.0}, {0: 14.0, 1: 6.0, 2: 3.0}]))
    reading = reader.read()  # two ticks later
    assert [run.state for run in reading.runs] == ["running"]
    assert [agent.state for agent in reading.agents] == ["running"]
    assert reading.cpus == [CpuLoad(0, 1.0, ("digits/1",)), CpuLoad(1, 0.25, ("digits/2",)), CpuLoad(2, 0.0)]


def test_the_load_is_measured_over_a_while_even_at_once() -> None:
    pauses: list[float] = []
    make_reader(iter([{}, {}]), step_s=0.05, sleep=pauses.append).read()
    assert pauses == [pytest.approx(0.2)]


def test_a_backend_without_services_and_one_on_other_machines_are_read_too() -> None:
    assert make_reader(iter([{}, {}]), has_services=False).read().services == []
    stand_in: Any = StandIn()
    reading = TopReader(stand_in, read_cpus=None).read()
    assert (len(reading.services), reading.agents, reading.cpus) == (1, [], [])


def test_the_busy_time_of_a_cpu_is_all_but_idling_and_waiting(tmp_path: Any) -> None:
    (tmp_path / "stat").write_text(
        "cpu  9 9 9 9 9 9 9\ncpu0 100 20 30 999 888 4 6 7 0 0\ncpu12 1 0 0 0 0 0 0\nintr 5\n"
    )
    ticks = os.sysconf("SC_CLK_TCK")
    assert read_busy_seconds(tmp_path) == {0: 160 / ticks, 12: 1 / ticks}
    assert read_busy_seconds(tmp_path / "none") == {}


READING = TopReading(
    at=NOW,
    services=[make_service("digits", (0,), (1,))],
    runs=[make_run("running")],
    agents=[make_agent(error="the server refused the token")],
    cpus=[CpuLoad(0, 1.0, ("digits/1",)), CpuLoad(1, 0.5, ("digits/2",)), CpuLoad(2, 0.0), CpuLoad(3, 0.1)],
)


def render(reading: TopReading, width: int | None = None, *, ascii_only: bool = False) -> list[str]:
    screen = format_top(reading, width=width, ascii_only=ascii_only)
    return [line for part in screen for line in ([part] if isinstance(part, str) else lay_out(part, width))]


def test_a_wide_terminal_shows_all_columns() -> None:
    assert "\n".join(render(READING)) == (
        """\
2026-09-21 14:13:20  1 service, 1 agent, 1 running run, 1.6 of 4 CPUs busy

service  state    ready  rps   p50   p95   requests  errors    serves
digits   ✓ ready  2/2    10.5  2 ms  4 ms  100       2 (2.0%)  cnn/3 90%, cnn/4 10%, cnn/4 shadow

instance  state    on     busy  memory     in flight  restarts
digits/1  ✓ ready  CPU 0  42%   128.0 MiB  3          0
digits/2  ✓ ready  CPU 1  42%   128.0 MiB  3          0

CPUs 0-3  █▅▁▂
          ab··
  a  digits/1
  b  digits/2

agent          state      since      last firing  missed  errors
mnist:checker  ● running  1 min ago  5 s ago      1       2
mnist:checker fails: the server refused the token

run             workflow     state      started    took
calm-running-1  mnist:train  ● running  1 min ago"""
    )


def test_on_a_narrow_terminal_what_can_be_spared_is_left_out() -> None:
    lines = render(READING, 44)
    assert lines[2:4] == ["service  state    ready  rps   p95", "digits   ✓ ready  2/2    10.5  4 ms"]
    assert "agent          state      errors" in lines
    assert all(len(line) <= 44 for line in lines if " fails: " not in line and "CPUs" not in line)


def test_in_ascii_the_load_of_a_cpu_is_a_digit() -> None:
    assert "CPUs 0-3  9401" in render(READING, ascii_only=True)


def test_with_nothing_that_runs_there_is_a_command_to_begin_with() -> None:
    assert "scanflow run app.py" in render(TopReading(at=NOW))[-1]


def test_many_cpus_are_drawn_in_rows_above_the_labels_of_their_instances() -> None:
    cpus = [CpuLoad(cpu, cpu / 99, (f"a/{cpu // 10}",) if cpu < 40 else ()) for cpu in range(100)]
    lines = draw_loads(cpus, width=60, levels="0123456789")
    assert lines[:2] == [
        "CPUs 0-47   000000111111111112222222222233333333333444444444",
        "            aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd········",
    ]
    assert lines[4:6] == ["CPUs 96-99  9999", "            ····"]
    assert lines[6:] == ["  a  a/0", "  b  a/1", "  c  a/2", "  d  a/3"]


def test_instances_on_the_same_cpus_have_one_label_and_those_past_the_last_label_a_plus() -> None:
    lines = draw_loads([CpuLoad(0, 0, ("a/1", "b/1")), CpuLoad(1, 0, ("a/1", "b/1"))], width=60, levels="01")
    assert lines == ["CPUs 0-1  00", "          aa", "  a  a/1, b/1"]
    many = draw_loads([CpuLoad(cpu, 0, (f"a/{cpu}",)) for cpu in range(60)], width=80, levels="01")
    assert "++++++++" in many[1]


def draw_screen(screen: TopScreen, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    with console.capture() as capture:
        console.print(screen, end="")
    return capture.get().splitlines()


def test_a_screen_that_is_too_low_says_how_much_is_hidden() -> None:
    screen = TopScreen()
    screen.show(READING)
    lines = draw_screen(screen, 100, 8)
    assert len(lines) == 8
    assert lines[-1].strip() == f"and {len(render(READING, 100)) - 7} lines more: scanflow top --once"


def test_a_failure_is_shown_above_the_last_reading_until_the_next() -> None:
    screen = TopScreen()
    screen.show(READING)
    screen.report(UnavailableError("The server is gone."))
    lines = draw_screen(screen, 100, 40)
    assert lines[0].strip() == "! The server is gone. Trying again."
    assert "1 service" in lines[1]
    screen.show(READING)
    assert "1 service" in draw_screen(screen, 100, 40)[0]


def test_a_failure_that_ends_with_a_command_is_a_sentence() -> None:
    screen = TopScreen()
    screen.report(UnavailableError("No server answers. Start it: scanflow up"))
    assert draw_screen(screen, 100, 40)[0].strip() == "! No server answers. Start it: scanflow up. Trying again."


def test_readings_are_shown_until_the_end_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    waits: list[float] = []

    class Flaky:
        readings = 0

        def read(self) -> TopReading:
            self.readings += 1
            if self.readings == 2:
                raise UnavailableError("The server is gone.")
            return READING

    reader: Any = Flaky()

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 3

    show_readings(reader, wait, 2.0)
    assert reader.readings == 3
    assert all(0 <= seconds <= 2 for seconds in waits)


@pytest.fixture
def type_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as stream:
        monkeypatch.setattr(sys, "stdin", stream)

        def write(keys: str) -> None:
            os.write(master, keys.encode())

        yield write
    os.close(master)


@pytest.mark.parametrize("key", ["q", "Q", "\x1b[Aq"])
def test_a_key_ends_it_at_once_and_another_does_not(type_keys: Callable[[str], None], key: str) -> None:
    before = termios.tcgetattr(sys.stdin)
    with watch_keys() as wait:
        assert not wait(0.0)
        type_keys("\x1b[A")  # an arrow
        assert not wait(0.01)
        type_keys(key)
        assert wait(60.0)
    assert termios.tcgetattr(sys.stdin) == before


def test_a_key_that_does_not_end_it_does_not_shorten_the_wait(type_keys: Callable[[str], None]) -> None:
    with watch_keys() as wait:
        type_keys("x")
        timer = threading.Timer(0.1, type_keys, ["q"])
        timer.start()
        assert wait(60.0)
        timer.join()


def test_without_a_keyboard_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("q"))
    with watch_keys() as wait:
        assert not wait(0.0)
