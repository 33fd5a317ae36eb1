"""The program in a step's pod, in folders of a test: what it runs, leaves and reports."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.accelerators.visible import HOLDER_VARIABLE
from scanflow.backends.definition import SavedDefinition
from scanflow.backends.kubernetes.batch.launch_plan import plan_launches
from scanflow.backends.kubernetes.batch.log_framing import split_streams
from scanflow.backends.kubernetes.batch.run_document import RunDocument
from scanflow.backends.pickles import write_pickle
from scanflow.backends.run_definition import RunDefinition
from tests.s3_server import S3Store, run_s3_server
from tests.waiting import patient

pytestmark = pytest.mark.processes

STEPS = {
    "load.py": """
import sys
import scanflow as sf
print("loading")
print("a warning", file=sys.stderr)
sf.output("files", ["a", "b"])
sf.output("rows", 12)
""",
    "train.py": "import sys; print(*sys.argv[1:])",
    "fail.py": 'raise OSError("no disk")',
    "sleep.py": "import time; time.sleep(86400)",
    "steps.py": "import scanflow as sf\n\n@sf.step\ndef add(to: int, plus: int = 1) -> int:\n    return to + plus\n",
}

PROGRAM = """
import json, os, sys
from pathlib import Path
from scanflow.backends.kubernetes.batch.folders import Folders
from scanflow.backends.kubernetes.batch.pod_step import run_step
base = Path(sys.argv[1])
places = [base / name for name in ("outputs", "run", "keys", "app", "reported", "store")]
folders = Folders(*places, store=os.environ.get("TEST_STORE", ""))
step, index, retry = json.loads(sys.argv[2])
code = run_step(folders, step, index, retry=retry, before={})
(base / "imported").write_text(" ".join(name for name in ("pydantic", "cloudpickle", "yaml") if name in sys.modules))
sys.exit(code)
"""


def step(name: str, **fields: Any) -> sf.Executor:
    fields.setdefault("mainfile", f"{name}.py")
    return sf.Executor(name=name, **fields)


def return_fixed() -> int:
    print("seven")
    return 7


@pytest.fixture
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store | None]:
    """Where a test's outputs are: in an object store; None: on a claim."""
    if getattr(request, "param", "store") == "claim":
        yield None
        return
    with run_s3_server() as server:
        monkeypatch.setenv("TEST_STORE", "s3://outputs/team/shop")
        monkeypatch.setenv("TEST_STORE_VARIABLES", json.dumps(server.variables))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
            monkeypatch.setenv(name, "a step's own")
        yield server


on_both = pytest.mark.parametrize("store", ["claim", "store"], indirect=True)
"""The test holds wherever outputs are."""


class Claim:
    """What the pods of a run share. With a store each pod is on a node of its own, which has nothing of the others."""

    def __init__(self, base: Path, nodes: list[sf.Executor], run: str = "calm-otter-417", **more: Any) -> None:
        self.base, self.run_name = base, run
        for name in ("outputs", "run", "keys", "app"):
            (base / name).mkdir(parents=True, exist_ok=True)
        for name, text in STEPS.items():
            (base / "app" / name).write_text(text)
        (base / "keys" / "pickle.key").write_bytes(b"k" * 32)
        workflow = sf.Workflow(name="wf", nodes=nodes)
        definition = RunDefinition(sf.Application(name="shop", workflows=[workflow]), workflow)
        document = RunDocument(
            run=run, definition=SavedDefinition.from_definition(definition), created=1.0, drive=1, **more
        )
        (base / "run" / "run.json").write_text(document.model_dump_json())
        launches = plan_launches(document.build_definition(), run, 1, document.variables, base / "outputs")
        if launches and not document.origins:
            (base / "run" / "launches.json").write_text(launches)

    def pod(self, name: str, index: int | None = None, *, retry: int = 0) -> tuple[int, dict[str, bytes]]:
        """Run a pod to its end; return its exit code and its streams."""
        if "TEST_STORE" in os.environ:
            shutil.rmtree(self.base / "outputs")
            (self.base / "store").mkdir(exist_ok=True)
            for name_of, value in json.loads(os.environ["TEST_STORE_VARIABLES"]).items():
                (self.base / "store" / name_of).write_text(value)
        for file in (self.base / "reported").glob("*"):
            if file.is_file():
                file.unlink()
        words = json.dumps([name, index, retry])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(self.base), words],
            capture_output=True,
            timeout=patient(120),
            check=False,
        )
        assert not done.stderr, done.stderr.decode()
        return done.returncode, split_streams([done.stdout])

    def read_report(self, name: str) -> str | None:
        file = self.base / "reported" / name
        return file.read_text() if file.is_file() else None

    @property
    def imported(self) -> str:
        """Which libraries the last pod's program imported, of those that take long."""
        return (self.base / "imported").read_text()

    def forget_attempts(self) -> None:
        shutil.rmtree(self.base / "outputs" / ".logs")

    @property
    def report(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.read_report("report") or "{}")
        return document


def test_a_step_is_run_and_says_what_later_ones_wait_for(tmp_path: Path) -> None:
    load = step("load")
    train = step("train", for_each=load["files"], parameters={"file": sf.item, "to": "/workflow/load"})
    claim = Claim(tmp_path, [load, train, step("many", mainfile="fail.py", when=load["rows"] > 20)])
    assert claim.pod("load") == (0, {"stdout": b"loading\n", "stderr": b"a warning\n"})
    assert (claim.read_report("items-train"), claim.read_report("when-many")) == ("[0,1]", "false")
    assert json.loads(claim.read_report("outputs") or "") == {"files": '["a", "b"]', "rows": "12"}
    assert claim.report["exit_code"] == 0
    assert claim.pod("train", 1) == (
        0,
        {"stdout": f"--file b --to {tmp_path}/outputs/calm-otter-417/load\n".encode(), "stderr": b""},
    )
    path = tmp_path / "outputs" / ".logs" / "calm-otter-417"
    assert (path / "load" / "1" / "stderr.log").read_bytes() == b"a warning\n"


@on_both
@pytest.mark.usefixtures("store")
def test_a_function_is_called_with_what_an_earlier_one_returned(tmp_path: Path) -> None:
    first = step("first", mainfile=None, function="steps.py:add", parameters={"to": 1})
    second = step("second", mainfile=None, function="steps.py:add", parameters={"to": first.output, "plus": 5})
    claim = Claim(tmp_path, [first, second])
    assert claim.pod("first")[0] == 0
    assert claim.pod("second")[0] == 0
    assert json.loads(claim.read_report("outputs") or "") == {"result": "7"}


def test_a_step_says_which_gpus_its_pod_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim(tmp_path, [step("load"), step("train")])
    claim.pod("load")
    assert "devices" not in claim.report
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-1,GPU-2")
    monkeypatch.setenv(HOLDER_VARIABLE, "pod")
    assert claim.pod("train")[0] == 0
    assert [use["uuid"] for use in claim.report["devices"]] == ["GPU-1", "GPU-2"]


def test_how_a_step_failed_is_reported(tmp_path: Path) -> None:
    load = step("load")
    wrong = step("wrong", mainfile="train.py", when=load["files"] > 1)
    claim = Claim(tmp_path, [load, step("fail"), step("sleep", timeout="300ms"), wrong])
    code, streams = claim.pod("fail")
    assert (code, claim.report["failure"]["cause"]) == (1, "OSError: no disk")
    assert b"no disk" in streams["stderr"]
    assert claim.pod("sleep")[0] == 124
    assert "timed out after" in claim.report["failure"]["summary"]
    claim.pod("load")
    assert claim.read_report("when-wrong") == "true", "the step itself says what is wrong with its condition"
    assert claim.pod("wrong")[0] == 125
    assert "cannot be tested" in claim.report["failure"]["cause"]


@pytest.mark.parametrize("own_session", [False, True])
def test_a_step_is_done_when_its_program_is_though_a_child_holds_its_output(tmp_path: Path, own_session: bool) -> None:
    claim = Claim(tmp_path, [step("leave", timeout="20s")])
    (tmp_path / "app" / "leave.py").write_text(
        "import subprocess, sys\n"
        f"child = subprocess.Popen(['sleep', '60'], start_new_session={own_session})\n"
        "open('child', 'w').write(str(child.pid))\n"
        "sys.stdout.write('x' * 100_000)\n"
        "sys.stderr.write('no newline')"
    )
    try:
        code, streams = claim.pod("leave")
        assert (code, claim.report["exit_code"]) == (0, 0)
        assert streams == {"stdout": b"x" * 100_000, "stderr": b"no newline"}
    finally:
        if own_session:
            os.kill(int((tmp_path / "app" / "child").read_text()), signal.SIGKILL)


def test_a_step_that_closes_its_output_is_waited_for(tmp_path: Path) -> None:
    claim = Claim(tmp_path, [step("silent")])
    (tmp_path / "app" / "silent.py").write_text("import os\nos.close(1)\nos.close(2)\nos._exit(3)")
    assert claim.pod("silent")[0] == 3


def test_a_step_that_writes_beside_itself_learns_where_to_write(tmp_path: Path) -> None:
    claim = Claim(tmp_path, [step("beside")])
    (tmp_path / "app" / "beside.py").write_text('raise OSError(30, "Read-only file system", "model.bin")')
    assert claim.pod("beside")[0] == 1
    cause = claim.report["failure"]["cause"]
    assert cause.startswith("OSError: [Errno 30] Read-only file system: 'model.bin'")
    assert "$SCANFLOW_OUTPUT_DIR" in cause


@on_both
@pytest.mark.usefixtures("store")
def test_the_files_of_a_step_are_in_its_report_where_they_are_few(tmp_path: Path) -> None:
    claim = Claim(tmp_path, [step("leave"), step("many"), step("cached", mainfile="leave.py", cache=True)])
    code = "import os, pathlib\nhere = pathlib.Path(os.environ['SCANFLOW_OUTPUT_DIR'])\n"
    (tmp_path / "app" / "leave.py").write_text(
        f"{code}(here / 'notes').mkdir()\n(here / 'notes' / 'a.txt').write_text('text')\n"
    )
    (tmp_path / "app" / "many.py").write_text(f"{code}for n in range(99): (here / str(n)).touch()\n")
    assert claim.pod("leave")[0] == 0
    assert claim.report["files"] == [["notes/a.txt", 4]]
    assert claim.pod("many")[0] == 0
    assert "files" not in claim.report
    for run in ("bold-crane-156", "keen-robin-201"):
        claim = Claim(tmp_path, [step("cached", mainfile="leave.py", cache=True)], run)
        assert claim.pod("cached")[0] == 0
        assert claim.report["files"] == [["notes/a.txt", 4]]
    assert claim.report["origin"] == "bold-crane-156"


def test_a_condition_is_reported_by_its_source_while_others_that_the_step_waits_for_have_not_ended(
    tmp_path: Path,
) -> None:
    load, later = step("load"), step("later", mainfile="load.py")
    unless = step("unless", mainfile="load.py", when=later["rows"] > 1)
    last = step("last", mainfile="train.py", when=load["rows"] > 1, parameters={"rows": unless["rows"]})
    claim = Claim(tmp_path, [load, later, unless, last])
    assert claim.pod("load")[0] == 0, claim.report
    assert claim.read_report("when-last") == "true"


@on_both
@pytest.mark.usefixtures("store")
def test_a_task_of_no_list_says_so(tmp_path: Path) -> None:
    load = step("load")
    claim = Claim(tmp_path, [load, step("train", for_each=load["rows"], parameters={"file": sf.item})])
    claim.pod("load")
    assert claim.read_report("items-train") == "[-1]"
    assert claim.pod("train", -1)[0] == 125
    assert "not a list" in claim.report["failure"]["cause"]


@on_both
@pytest.mark.usefixtures("store")
def test_what_an_earlier_run_left_is_taken_from_the_cache(tmp_path: Path) -> None:
    cached = step("first", mainfile=None, function="steps.py:add", parameters={"to": 1}, cache=True)
    assert Claim(tmp_path, [cached], "bold-crane-156").pod("first")[0] == 0
    claim = Claim(tmp_path, [cached])
    assert claim.pod("first")[0] == 0
    assert (claim.report["origin"], json.loads(claim.read_report("outputs") or "")) == (
        "bold-crane-156",
        {"result": "2"},
    )
    changed = cached.replace(parameters={"to": 2})
    claim = Claim(tmp_path, [changed])
    claim.pod("first")
    assert "origin" not in claim.report
    forced = Claim(tmp_path, [cached.replace(refresh_cache=True)], "keen-robin-201")
    assert forced.pod("first")[0] == 0
    assert "origin" not in forced.report
    claim = Claim(tmp_path, [cached])
    claim.pod("first")
    assert claim.report["origin"] == "keen-robin-201"


def test_a_cached_step_of_a_pod_looks_at_what_its_code_imports_and_its_defaults_name(tmp_path: Path) -> None:
    cached = step("first", mainfile=None, function="own.py:read", parameters={}, cache=True)

    def run(**files: str) -> str:
        claim = Claim(tmp_path, [cached])
        code = (
            "from pathlib import Path\nimport helper\n"
            "def read(file: Path = Path('x.txt')) -> int:\n    return helper.x\n"
        )
        for name, text in {"own.py": code, "helper.py": "x = 1", "x.txt": "1", **files}.items():
            (tmp_path / "app" / name).write_text(text)
        shutil.rmtree(tmp_path / "outputs" / ".logs", ignore_errors=True)
        assert claim.pod("first")[0] == 0
        return str(claim.report.get("origin", claim.report.get("cache_note", "ran")))

    assert run() == "ran"
    assert run() == "calm-otter-417"
    assert run(**{"helper.py": "x = 2"}) == run(**{"x.txt": "2"}) == "ran"
    assert run(**{"helper.py": "import importlib\nx = importlib.import_module(name='math').floor(2)"}).startswith(
        "not cached: helper.py, line 2, imports a module"
    )


@on_both
@pytest.mark.usefixtures("store")
def test_a_spin_finds_what_the_past_run_left(tmp_path: Path) -> None:
    first = step("first", mainfile=None, function="steps.py:add", parameters={"to": 1})
    second = step("second", mainfile=None, function="steps.py:add", parameters={"to": first.output, "plus": 5})
    Claim(tmp_path, [first, second], "bold-crane-156").pod("first")
    claim = Claim(tmp_path, [first, second], origins={"first": "bold-crane-156"})
    assert claim.pod("second")[0] == 0
    assert json.loads(claim.read_report("outputs") or "") == {"result": "7"}


def test_a_function_that_was_sent_is_loaded_from_where_a_config_map_links_it(tmp_path: Path) -> None:
    function_file = f"{'a' * 64}.pickle"
    claim = Claim(tmp_path, [sf.Executor(name="train", function=f"{function_file}:return_fixed")])
    (tmp_path / "run" / "..data").mkdir()
    write_pickle(tmp_path / "run" / "..data" / function_file, return_fixed, b"k" * 32)
    (tmp_path / "run" / function_file).symlink_to(Path("..data") / function_file)
    code, streams = claim.pod("train")
    assert (code, streams["stdout"]) == (0, b"seven\n"), streams


def test_a_step_without_retries_does_not_run_twice_where_its_pod_is_made_again(tmp_path: Path) -> None:
    """The pod was gone before Argo had seen it run, and has the same name and attempt as the one before."""
    claim = Claim(tmp_path, [step("load"), step("again", mainfile="load.py", retries=1)])
    assert claim.pod("load")[0] == 0
    path = tmp_path / "outputs" / claim.run_name / "load" / ".outputs" / "rows"
    assert path.read_text() == "12"
    assert claim.pod("load") == (125, {"stdout": b"", "stderr": b""})
    assert claim.report["failure"]["summary"] == "its pod was deleted"
    assert "retries=1" in claim.report["failure"]["cause"]
    assert path.read_text() == "12", "what the first one left stays"
    assert [claim.pod("again")[0] for _ in range(2)] == [0, 0], "it may run again"
    for document in (tmp_path / "run").glob("*.json"):
        text = document.read_text()
        document.write_text(text.replace('"drive":1', '"drive":2').replace('"drive": 1', '"drive": 2'))
    assert claim.pod("load")[0] == 0, "somebody goes on with the run"


def test_a_step_with_settled_options_is_run_with_the_standard_library_alone(tmp_path: Path) -> None:
    load, show = step("load"), step("show", mainfile="environment.py", parameters={"to": "/workflow/load", "n": 2})
    show = show.replace(env={"OWN": "1"}, resources=sf.Resources(cpu=2))
    claim = Claim(tmp_path, [load, show, step("fail"), step("gone", mainfile="gone.py")], variables={"AT": "@task@"})
    names = ("OWN", "AT", "SCANFLOW_TASK", "SCANFLOW_OUTPUT_DIR", "OMP_NUM_THREADS")
    (tmp_path / "app" / "environment.py").write_text(
        f"import os, sys\nprint(*sys.argv[1:], *(os.environ[name] for name in {names}))\n"
    )
    outputs = f"{tmp_path}/outputs/{claim.run_name}"
    seen = f"--to {outputs}/load --n 2 1 show show {outputs}/show 2\n"
    assert claim.pod("show") == (0, {"stdout": seen.encode(), "stderr": b""})
    assert (claim.imported, set(claim.report)) == (
        "",
        {"began", "seconds", "exit_code", "cpu_s", "max_rss_bytes", "files"},
    )
    assert claim.pod("load")[0] == 0
    assert (claim.imported, json.loads(claim.read_report("outputs") or "")["rows"]) == ("", "12")
    assert claim.pod("fail")[0] == 1
    assert claim.report["failure"]["cause"] == "OSError: no disk"
    assert claim.pod("gone")[0] == 125
    assert "There is no file 'gone.py'" in claim.report["failure"]["cause"]

    (tmp_path / "run" / "launches.json").unlink()
    claim.forget_attempts()
    assert claim.pod("show") == (0, {"stdout": seen.encode(), "stderr": b""}), "it is the same without"
    assert "pydantic" in claim.imported


def test_a_step_that_depends_on_what_others_left_has_no_launch() -> None:
    load, loop = step("load"), step("loop", for_each=[1, 2], parameters={"n": sf.item})
    nodes = [
        load,
        loop,
        step("last"),
        step("used", parameters={"n": load["rows"]}),
        step("asked", when=load["rows"] > 1),
        step("kept", cache=True),
        sf.Executor(name="called", function="steps.py:add", parameters={"to": 1}),
    ]
    workflow = sf.Workflow(name="wf", nodes=nodes)
    definition = RunDefinition(sf.Application(name="shop", workflows=[workflow]), workflow)
    planned = json.loads(plan_launches(definition, "calm-otter-417", 1, {}))
    assert list(planned["steps"]) == ["last"], "load tells whether asked is to run"
