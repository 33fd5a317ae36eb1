"""A program's runs, its memory group, and how a characterization goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scanflow.characterization.characterization_study import characterize, choose_core_counts, choose_placements
from scanflow.characterization.measured_program import find_memory_group_problem, run_program
from scanflow.characterization.measurement import Placement, ProgramRun
from scanflow.characterization.memory_group import open_memory_group
from scanflow.errors import InvalidError, NotFoundError, StepFailedError, UnsupportedError
from scanflow.placement.topology import Cache, uniform
from scanflow.processes.cpu_use import BUSY_CORES
from scanflow_client.cli.command_tree import app
from scanflow_client.formatting.characterization_text import build_characterization_json, format_characterization
from scanflow_client.resources_patch import build_resources_patch
from tests.unit.characterization.test_analysis import MIB, ran
from tests.waiting import patient, wait_until

HERE = Placement(cpus=(min(os.sched_getaffinity(0)),))
GREEDY = "data = bytearray(200 * 2**20); data[::4096] = b'x' * len(data[::4096])"


def run(code: str, *, timeout_s: float = 60.0, limit_bytes: int | None = None) -> ProgramRun:
    return run_program([sys.executable, "-c", code], HERE, timeout_s=patient(timeout_s), limit_bytes=limit_bytes)


@pytest.mark.processes
def test_a_run_counts_what_a_program_takes() -> None:
    result = run(f"import os\n{GREEDY}\nassert os.sched_getaffinity(0) == {set(HERE.cpus)}")
    assert (result.outcome, result.exit_code) == ("succeeded", 0)
    assert result.peak_bytes > 200 * MIB
    assert 0 < result.cpu_s <= result.seconds + 1
    assert result.minor_faults > 1000


@pytest.mark.processes
def test_what_others_use_of_the_cpus_while_a_program_runs_is_counted_and_not_its_own() -> None:
    busy = "import time\nuntil = time.monotonic() + {}\nwhile time.monotonic() < until: pass"
    other = subprocess.Popen([sys.executable, "-c", busy.format(60)])
    try:
        disturbed = run("import time; time.sleep(1)")
    finally:
        other.kill()
        other.wait()
    assert disturbed.others > BUSY_CORES
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    start = f"subprocess.Popen([sys.executable, '-c', {busy.format(1)!r}])"
    code = f"import subprocess, sys; [one.wait() for one in [{start} for _ in range({len(cpus)})]]"
    full = run_program([sys.executable, "-c", code], Placement(cpus=cpus), timeout_s=patient(60.0))
    assert full.others + full.cores <= len(cpus) + 0.2, "what it used itself is not others'"
    assert "Other processes used the machine in 1 of 1 measurement, by up to" in "\n".join(
        map(str, format_characterization(characterize(lambda *_: disturbed, [HERE], rounds=1, search_memory=False)))
    )


@pytest.mark.processes
def test_a_program_that_fails_leaves_what_it_wrote_last() -> None:
    result = run("import sys; print('before'); sys.exit('no such file')")
    assert (result.outcome, result.exit_code, result.last_lines) == ("failed", 1, "before\nno such file")


@pytest.mark.processes
def test_a_program_that_never_ends_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    begin = "import subprocess, sys; child = subprocess.Popen(['sleep', '600']); "
    code = begin + "open(sys.argv[1], 'w').write(str(child.pid)); child.wait()"
    for timeout_s in (1.0, 4.0, 16.0, 64.0):  # on a busy machine it takes longer until it has begun
        result = run_program([sys.executable, "-c", code, str(tmp_path / "pid")], HERE, timeout_s=timeout_s)
        assert result.outcome == "timed out"
        if (tmp_path / "pid").exists():
            break
    child = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    wait_until(
        lambda: not child.exists() or child.read_text().split()[2] == "Z", "the child is gone, or waits to be reaped"
    )


@pytest.mark.processes
def test_a_program_with_too_little_memory_is_killed_where_memory_can_be_limited() -> None:
    if find_memory_group_problem() is not None:
        with pytest.raises(UnsupportedError):
            run(GREEDY, limit_bytes=100 * MIB)
        return
    assert run(GREEDY, limit_bytes=100 * MIB).outcome == "out of memory"
    assert run(GREEDY, limit_bytes=400 * MIB).outcome == "succeeded"


def test_a_program_that_is_not_there_is_reported() -> None:
    with pytest.raises(NotFoundError, match=r"no program 'nope-at-all'.* Give its path.*chmod \+x nope-at-all"):
        run_program(["nope-at-all"], HERE, timeout_s=1)


@pytest.mark.parametrize(
    ("line", "folder", "files"),
    [
        ("4:memory:/a\n0::/b\n", "memory/a", ["memory.limit_in_bytes", "memory.swappiness"]),
        ("0::/b\n", "b", ["memory.max", "memory.swap.max"]),
    ],
)
def test_a_group_is_made_below_our_own_in_either_version(
    tmp_path: Path, line: str, folder: str, files: list[str]
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(line)
    root = tmp_path / "root"
    (root / folder).mkdir(parents=True)
    with open_memory_group(64 * MIB, root=root, proc=tmp_path) as group:
        assert group.folder.parent == root / folder
        assert [(group.folder / file).read_text() for file in files] == [str(64 * MIB), "0"]
        (group.folder / ("memory.events" if group.second else "memory.oom_control")).write_text("low 0\noom_kill 2\n")
        assert group.kills == 2
        for file in group.folder.iterdir():  # as the kernel's go with the folder
            file.unlink()
    assert not group.folder.exists()


def test_where_there_are_no_groups_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no control groups"), open_memory_group(1, root=tmp_path, proc=tmp_path):
        pass


def test_a_program_runs_in_one_cache_and_in_several_where_there_are_several() -> None:
    two = uniform(sockets=1, cores_per_socket=4).model_copy(
        update={"caches": (Cache(level=3, cpus=(0, 1)), Cache(level=3, cpus=(2, 3)))}
    )
    assert choose_core_counts(two) == [1, 2, 4]
    assert choose_placements(two, [1, 2, 4]) == [
        Placement(cpus=(0,)),
        Placement(cpus=(0, 1), caches="shared"),
        Placement(cpus=(0, 2), caches="separate"),
        Placement(cpus=(0, 1, 2, 3)),
    ]
    with pytest.raises(InvalidError, match="this machine has 4"):
        choose_placements(two, [5])


def test_runs_alternate_and_memory_is_searched_where_the_program_is_nearly_as_fast_as_it_gets() -> None:
    seen: list[tuple[int, int | None]] = []

    def program(where: Placement, limit: int | None) -> ProgramRun:
        seen.append((len(where.cpus), limit))
        if limit is not None and limit < 50 * MIB:
            return replace(ran(), outcome="out of memory")
        return ran(seconds=10 / min(2, len(where.cpus)), cpu_s=10.0)

    characterization = characterize(
        program, choose_placements(uniform(sockets=1, cores_per_socket=4), [1, 2, 4]), rounds=2
    )
    assert [cores for cores, limit in seen if limit is None] == [1, 2, 4, 2, 4, 1]
    assert {cores for cores, limit in seen if limit is not None} == {2}
    assert (characterization.saturation.kind, characterization.saturation.enough) == ("flat", 2)
    assert characterization.knee is not None
    assert characterization.knee.too_few < 50 * MIB <= characterization.knee.enough
    table, summary, limits, bound, advice = format_characterization(characterization)
    assert summary == "Flat: more cores do not help. Close to its fastest: 2 cores."
    assert "out of memory" in {row[1] for row in limits.rows}  # type: ignore[union-attr]
    assert str(bound).startswith("It runs with ")
    assert str(advice) == 'Request: resources=sf.Resources(cpu=2, memory="64Mi")'
    assert build_characterization_json(characterization)["saturation"]["speed"] == {1: 1.0, 2: 2.0, 4: 2.0}
    assert [row[0] for row in table.rows] == ["1 core", "2 cores", "4 cores"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ("timed out", r"did not finish within 10 s on 1 core.*--timeout 1h"),
        ("failed", r"failed on 1 core.*no such file"),
    ],
)
def test_a_program_that_does_not_succeed_unlimited_cannot_be_characterized(outcome: str, message: str) -> None:
    bad = replace(ran(), outcome=outcome, last_lines="no such file")  # type: ignore[arg-type]
    with pytest.raises(StepFailedError, match=message):
        characterize(lambda _where, _limit: bad, [HERE])


APP = """import scanflow as sf

train = sf.Executor(
    name="train",
    mainfile="é.py",
)
serve = sf.Service(name="serve", implementation="m.py:M", resources=sf.Resources(cpu=1))
plain = sf.Executor(name="plain", mainfile="p.py")
"""


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("train", "+    resources=sf.Resources(cpu=2),"),
        ("serve", '+serve = sf.Service(name="serve", implementation="m.py:M", resources=sf.Resources(cpu=2))'),
        ("plain", '+plain = sf.Executor(name="plain", mainfile="p.py", resources=sf.Resources(cpu=2))'),
    ],
)
def test_a_patch_asks_for_resources_where_a_step_is_made(name: str, added: str) -> None:
    patch = build_resources_patch(APP, "app.py", name, "sf.Resources(cpu=2)")
    assert added in patch.splitlines()
    assert patch.startswith("--- a/app.py\n+++ b/app.py\n")


def test_the_gpus_of_a_step_stay_where_none_were_measured() -> None:
    text = 'train = sf.Executor(name="train", resources=sf.Resources(cpu=1, gpu=0.5, gpu_memory="8Gi"))\n'
    patch = build_resources_patch(text, "app.py", "train", 'sf.Resources(cpu=2, memory="64Mi")')
    assert 'resources=sf.Resources(cpu=2, memory="64Mi", gpu=0.5, gpu_memory="8Gi"))' in patch
    measured = build_resources_patch(text, "app.py", "train", "sf.Resources(cpu=2, gpu=1)")
    assert '+train = sf.Executor(name="train", resources=sf.Resources(cpu=2, gpu=1))' in measured


def test_a_form_feed_begins_no_line() -> None:
    patch = build_resources_patch("\x0c\n" + APP, "app.py", "plain", "sf.Resources(cpu=2)")
    assert '+plain = sf.Executor(name="plain", mainfile="p.py", resources=sf.Resources(cpu=2))' in patch.split("\n")


def test_what_cannot_be_patched_is_reported() -> None:
    with pytest.raises(NotFoundError, match="Did you mean 'train'"):
        build_resources_patch(APP, "app.py", "trian", "")
    with pytest.raises(InvalidError, match="line 1"):
        build_resources_patch("def", "app.py", "train", "")


@pytest.mark.processes
def test_the_command_says_what_to_ask_for_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    words = ["characterize", "--cores", "1", "--rounds", "1", "--no-memory", "--write", "app.py:train"]
    result = CliRunner().invoke(app, [*words, "--", sys.executable, "-c", "pass"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Request: resources=sf.Resources(cpu=" in result.stdout
    assert "+    resources=sf.Resources(cpu=" in result.stdout
    for word in ("app.py", ":train", "none.py:train"):
        with pytest.raises((InvalidError, NotFoundError)):
            CliRunner().invoke(app, ["characterize", "--write", word, "--", "true"], catch_exceptions=False)
