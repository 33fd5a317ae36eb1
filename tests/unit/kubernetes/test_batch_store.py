"""Outputs in an object store: what a step may read on a claim it may read there too, and nothing is half there."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.batch.object_storage import ObjectStorage
from scanflow.backends.kubernetes.batch.object_store import ObjectStore
from scanflow.backends.kubernetes.batch.task_archives import unpack_archive, write_archive
from scanflow.errors import InvalidError, NotFoundError, UnavailableError
from scanflow.names import StepName
from tests.s3_server import S3Store
from tests.unit.kubernetes.test_batch_step import Claim, on_both, step, store

__all__ = ["store"]

RUN = "calm-otter-417"
KEPT = f"outputs/team/shop/{RUN}"

CODE = """
import os
from pathlib import Path
import scanflow as sf

HERE = lambda: Path(os.environ["SCANFLOW_OUTPUT_DIR"])

@sf.step
def first() -> Path:
    folder = HERE()
    (folder / "empty").mkdir()
    (folder / "tool").write_text("echo")
    (folder / "tool").chmod(0o750)
    (folder / "latest").symlink_to("tool")
    (folder / "gone").write_text("soon")
    (folder / "more").mkdir()
    (folder / "more" / "rows.csv").write_text("1\\n2\\n")
    (folder.parent / "shared").mkdir(exist_ok=True)
    (folder.parent / "shared" / "note").write_text("of first")
    return folder / "more" / "rows.csv"

@sf.step
def second(file: Path) -> Path:
    (HERE().parent / "first" / "gone").unlink()
    (HERE().parent / "first" / "tool").write_text("changed")
    (HERE().parent / "shared" / "note").write_text("of second")
    return file

@sf.step
def third(file: Path) -> list[str]:
    base = HERE().parent
    tool = base / "first" / "tool"
    return [
        file.read_text(),
        *sorted(path.name for path in (base / "first").iterdir() if path.name[0] != "."),
        oct(tool.stat().st_mode & 0o777),
        (base / "first" / "latest").read_text(),
        str((base / "first" / "latest").readlink()),
        (base / "shared" / "note").read_text(),
    ]

@sf.step
def each(file: Path | list[int], to: int) -> int:
    (HERE() / "part.csv").write_text(str(to))
    return to

@sf.step
def count(base: str, of: list[int]) -> list[str]:
    return sorted(path.read_text() for path in Path(base).rglob("part.csv"))

@sf.step
def variables() -> list[str]:
    return [os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_ACCESS_KEY_ID"], str("AWS_SECRET_ACCESS_KEY" in os.environ)]

@sf.step
def text() -> str:
    return str(HERE() / "model.bin")

@sf.step
def read(file: Path) -> str:
    return file.read_text()

@sf.step
def items() -> list[int]:
    return [5, 6]
"""


def function(name: str, target: str | None = None, **fields: Any) -> sf.Executor:
    return step(name, mainfile=None, function=f"own.py:{target or name}", **fields)


def make(base: Path, nodes: list[sf.Executor], run: str = RUN, **more: Any) -> Claim:
    claim = Claim(base, nodes, run, **more)
    (base / "app" / "own.py").write_text(CODE)
    return claim


def result(claim: Claim) -> Any:
    return json.loads(json.loads(claim.read_report("outputs") or "{}")["result"])


def reach(server: S3Store, base: Path) -> ObjectStorage:
    return ObjectStorage(ObjectStore.open("s3://outputs/team/shop", server.variables), base)


@on_both
@pytest.mark.usefixtures("store")
def test_a_step_reads_by_path_what_any_step_before_it_left_and_changed(tmp_path: Path) -> None:
    first = function("first")
    second = function("second", parameters={"file": first.output})
    third = function("third", parameters={"file": second.output})
    claim = make(tmp_path, [first, second, third])
    for name in ("first", "second", "third"):
        assert claim.pod(name)[0] == 0, claim.report
    seen = ["1\n2\n", "empty", "latest", "more", "tool", "0o750", "changed", "tool", "of second"]
    assert result(claim) == seen


@on_both
@pytest.mark.usefixtures("store")
def test_a_step_finds_the_files_of_all_tasks_of_a_fan_out_before_it(tmp_path: Path) -> None:
    first, items = function("first"), function("items")
    each = function("each", for_each=items.output, parameters={"file": first.output, "to": sf.item})
    fields = {"base": "/workflow", "of": each.output}
    count = function("count", parameters=fields, when=items.output.equals([5, 6]))
    claim = make(tmp_path, [first, items, each, count])
    for name, index in (("first", None), ("items", None), ("each", 0), ("each", 1), ("count", None)):
        assert claim.pod(name, index)[0] == 0, claim.report
        if name == "items":
            assert (claim.read_report("items-each"), claim.read_report("when-count")) == ("[0,1]", "true")
    assert result(claim) == ["5", "6"]


def test_a_script_finds_what_steps_before_it_left(tmp_path: Path, store: S3Store) -> None:
    load = step("load")
    claim = Claim(tmp_path, [load, step("show", parameters={"file": load["rows"], "other": "/workflow/load/rows.txt"})])
    (tmp_path / "app" / "load.py").write_text(
        "import os, pathlib\nimport scanflow as sf\nsf.output('rows', 12)\n"
        "pathlib.Path(os.environ['SCANFLOW_OUTPUT_DIR'], 'rows.txt').write_text('twelve')\n"
    )
    (tmp_path / "app" / "show.py").write_text("import sys, pathlib; print(pathlib.Path(sys.argv[-1]).read_text())")
    assert claim.pod("load")[0] == 0
    assert claim.pod("show") == (0, {"stdout": b"twelve\n", "stderr": b""})
    assert sorted(store.objects) == [
        f"{KEPT.replace(RUN, '.logs/' + RUN)}/load/1/begun-1",
        f"{KEPT.replace(RUN, '.logs/' + RUN)}/load/1/stderr.log",
        f"{KEPT.replace(RUN, '.logs/' + RUN)}/load/1/stdout.log",
        f"{KEPT.replace(RUN, '.logs/' + RUN)}/show/1/begun-1",
        f"{KEPT.replace(RUN, '.logs/' + RUN)}/show/1/stderr.log",
        f"{KEPT.replace(RUN, '.logs/' + RUN)}/show/1/stdout.log",
        f"{KEPT}/load.tar",
        f"{KEPT}/show.tar",
    ]


def test_outputs_that_a_user_removed_are_said_by_name(tmp_path: Path, store: S3Store) -> None:
    first, second = function("first"), function("second", parameters={"file": sf.Ref(step="first", output="result")})
    claim = make(tmp_path, [first, second, function("third", parameters={"file": second.output})])
    assert [claim.pod(name)[0] for name in ("first", "second")] == [0, 0]
    del store.objects[f"{KEPT}/first.tar"]
    assert claim.pod("third")[0] == 125
    cause = claim.report["failure"]["cause"]
    assert "The outputs of first in the run 'calm-otter-417' are no longer in s3://outputs/team/shop" in cause


def test_a_step_with_outputs_that_cannot_be_kept_fails_with_the_stores_own_message(
    tmp_path: Path, store: S3Store
) -> None:
    claim = make(tmp_path, [function("first")])
    store.refused = r"\.tar$"
    code, _ = claim.pod("first")
    assert (code, claim.report["failure"]["summary"]) == (1, "its outputs could not be kept")
    assert "AccessDenied" in claim.report["failure"]["cause"]
    assert claim.report["exit_code"] == 0
    assert f"{KEPT}/first.tar" not in store.objects


def test_a_failed_attempt_leaves_its_log_and_nothing_of_an_earlier_one(tmp_path: Path, store: S3Store) -> None:
    claim = Claim(tmp_path, [step("fail")])
    store.put(f"{KEPT}/fail.tar", b"of an earlier attempt")
    assert claim.pod("fail")[0] == 1
    assert f"{KEPT}/fail.tar" not in store.objects
    assert b"no disk" in store.objects[f"outputs/team/shop/.logs/{RUN}/fail/1/stderr.log"]


@on_both
@pytest.mark.usefixtures("store")
def test_an_attempt_sees_what_an_earlier_one_left_in_the_runs_folder_and_so_do_later_steps(tmp_path: Path) -> None:
    tried = step("tried", mainfile="tried.py", retries=1, parameters={"to": "/workflow/checkpoint"})
    show = step("show", parameters={"rows": tried["rows"], "file": "/workflow/checkpoint"})
    claim = Claim(tmp_path, [tried, show])
    (tmp_path / "app" / "tried.py").write_text(
        "import sys, pathlib\nimport scanflow as sf\nfile = pathlib.Path(sys.argv[-1])\n"
        "if not file.exists():\n    file.write_text('half')\n    sys.exit(3)\nsf.output('rows', file.read_text())\n"
    )
    (tmp_path / "app" / "show.py").write_text("import sys, pathlib; print(pathlib.Path(sys.argv[-1]).read_text())")
    assert claim.pod("tried")[0] == 3
    assert claim.pod("tried", retry=1)[0] == 0, claim.report
    assert claim.pod("show") == (0, {"stdout": b"half\n", "stderr": b""})


def test_a_step_without_retries_does_not_run_twice_on_another_node(tmp_path: Path, store: S3Store) -> None:
    claim = Claim(tmp_path, [step("load")])
    assert claim.pod("load")[0] == 0
    archive = store.objects[f"{KEPT}/load.tar"]
    assert claim.pod("load")[0] == 125
    assert claim.report["failure"]["summary"] == "its pod was deleted"
    assert store.objects[f"{KEPT}/load.tar"] == archive


def test_the_variables_of_a_step_are_its_own_and_not_those_of_the_store(tmp_path: Path, store: S3Store) -> None:
    claim = make(tmp_path, [function("variables")])
    assert claim.pod("variables")[0] == 0, claim.report
    assert result(claim) == ["a step's own", "a step's own", "False"]
    assert store.requests


def test_a_cached_result_that_names_the_folder_of_its_run_is_not_kept_for_others(
    tmp_path: Path, store: S3Store
) -> None:
    claim = make(tmp_path, [function("text", cache=True)])
    assert claim.pod("text")[0] == 0
    assert claim.report["cache_note"].startswith("not cached: what it left names the folder of its run")
    assert not [name for name in store.objects if ".cache" in name]


def test_a_spin_of_a_spin_finds_what_the_first_run_left(tmp_path: Path, store: S3Store) -> None:
    first = function("first")
    second = function("second", parameters={"file": first.output})
    third = function("third", "read", parameters={"file": second.output})
    past = make(tmp_path, [first, second, third], "bold-crane-156")
    assert [past.pod(name)[0] for name in ("first", "second", "third")] == [0, 0, 0]
    for run, origin in (("keen-robin-201", "bold-crane-156"), (RUN, "keen-robin-201")):
        spin = make(tmp_path, [first, second, third], run, origins={"first": origin, "second": origin})
        assert spin.pod("third")[0] == 0, spin.report
        assert result(spin) == result(past)
    outputs = reach(store, tmp_path / "elsewhere")
    assert outputs.list_tasks(RUN) == ["first", "second", "third"]
    assert dict(outputs.list_files(RUN, StepName("first")))["more/rows.csv"] == 4


def test_a_reader_brings_named_outputs_and_logs_and_lists_files(tmp_path: Path, store: S3Store) -> None:
    items = function("items")
    each = function("each", for_each=items.output, parameters={"file": items.output, "to": sf.item})
    claim = make(tmp_path, [items, each])
    assert [claim.pod("items")[0], claim.pod("each", 0)[0], claim.pod("each", 1)[0]] == [0, 0, 0], claim.report
    outputs = reach(store, tmp_path / "elsewhere")
    logs = f".logs/{RUN}/each.1/1"
    outputs.fetch_folders(PurePosixPath(folder) for folder in (f"{RUN}/items/.outputs", f"{RUN}/each/1/.outputs", logs))
    here = tmp_path / "elsewhere"
    assert (here / RUN / "items" / ".outputs" / "result").read_text() == "[5, 6]"
    assert (here / RUN / "each" / "1" / ".outputs" / "result").read_text() == "6"
    assert not (here / RUN / "each" / "1" / "part.csv").exists()
    assert sorted(file.name for file in (here / logs).iterdir()) == ["begun-1", "stderr.log", "stdout.log"]
    assert outputs.list_files(RUN, StepName("each.0")) == [("part.csv", 1)]
    assert outputs.list_files(RUN, StepName("each.7")) == []


def test_a_store_that_refuses_its_key_is_reported_with_its_message(store: S3Store) -> None:
    variables = {**store.variables, "AWS_ACCESS_KEY_ID": "nobody"}
    with pytest.raises(UnavailableError, match=r"s3://outputs/p failed: .*InvalidAccessKeyId.*OUTPUTS_SECRET"):
        ObjectStore.open("s3://outputs/p", variables).write("a", b"1")
    assert os.environ["AWS_ACCESS_KEY_ID"] == "a step's own"


def test_an_object_that_is_being_written_is_not_there_before_it_is_whole(store: S3Store) -> None:
    objects = ObjectStore.open("s3://outputs", store.variables)
    lent = objects.open_writer("big", 0)
    lent.__enter__().write(b"1" * 20_000_000)
    assert not lent.__exit__(ValueError, ValueError("half"), None)
    with pytest.raises(NotFoundError, match="There is no 'big'"):
        objects.read("big")
    with objects.open_writer("big", 0) as stream:
        stream.write(b"1" * 20_000_000)
    assert len(objects.read("big")) == 20_000_000


def _pack(base: Path) -> bytes:
    packed = io.BytesIO()
    write_archive(packed, base, base / "task")
    return packed.getvalue()


def test_an_archive_that_is_not_whole_is_never_believed(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    for number in range(3):
        (tmp_path / "task" / f"{number}.txt").write_text("text")
    content = _pack(tmp_path)
    ends = range(0, len(content) - 3 * tarfile.BLOCKSIZE, tarfile.BLOCKSIZE)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        whole = archive.getmembers()[-1]
    for end in ends:
        if end < whole.offset_data + tarfile.BLOCKSIZE:
            with pytest.raises((InvalidError, OSError)):
                unpack_archive(io.BytesIO(content[:end]), tmp_path / "there")
    unpack_archive(io.BytesIO(content), tmp_path / "there")
    assert len(list((tmp_path / "there" / "task").iterdir())) == 3


def test_hard_links_and_folders_that_may_not_be_written_are_as_they_were(tmp_path: Path) -> None:
    task = tmp_path / "task"
    (task / "closed").mkdir(parents=True)
    (task / "closed" / "a").write_text("text")
    os.link(task / "closed" / "a", task / "b")
    (task / "closed").chmod(0o555)
    unpack_archive(io.BytesIO(_pack(tmp_path)), tmp_path / "there")
    there = tmp_path / "there" / "task"
    assert (there / "b").read_text() == "text"
    assert (there / "closed").stat().st_mode & 0o777 == 0o555
    (task / "closed").chmod(0o755)
    (there / "closed").chmod(0o755)


@pytest.mark.parametrize("name", ["files/../../x", "elsewhere/x", "/files/x"])
def test_an_archive_writes_nowhere_else(tmp_path: Path, name: str) -> None:
    packed = io.BytesIO()
    fields = {"files": [], "outputs": 0, "members": 1, "deleted": [], "changes_others": False, "origin": ""}
    index = json.dumps(fields).encode()
    with tarfile.open(fileobj=packed, mode="w|") as archive:
        for member, content in (("index.json", index), (name, b"1")):
            head = tarfile.TarInfo(member)
            head.size = len(content)
            archive.addfile(head, io.BytesIO(content))
    with pytest.raises(InvalidError, match="which no task writes"):
        unpack_archive(io.BytesIO(packed.getvalue()), tmp_path)
    assert list(tmp_path.iterdir()) == []
