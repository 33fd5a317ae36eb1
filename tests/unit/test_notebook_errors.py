"""What IPython shows of errors: the user's own frames, one cause and what to do next."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell
from pydantic import ValidationError
from traitlets.config import Config

from scanflow.errors import InvalidError


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteractiveShell]:
    """IPython in this process, as a notebook's kernel has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patch.delenv("VIRTUAL_ENV", raising=False)  # IPython warns if it is another environment than this one
        patch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # IPython's own takes its place
        shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
        shell.run_cell("import scanflow as sf")
        yield shell
        InteractiveShell.clear_instance()


def run_cell(shell: InteractiveShell, cell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a cell that fails, and return its traceback."""
    result = shell.run_cell(cell)
    assert not result.success
    return capsys.readouterr().out


HELPER = """
def make_step():
    return sf.Executor(name="Bad Name", mainfile="a.py")
make_step()
"""

HANDLED = """
try:
    1 / 0
except ZeroDivisionError:
    sf.Application(name="shop").workflow("w")
"""

REFUSED = """
sf.Client("http://127.0.0.1:9", token="t" * 32).runs()
"""

CALLED = """
@sf.step
def double(value):
    return value * sf.absent_name
double(1)
"""


def test_an_error_of_ours_shows_the_users_frames_its_message_and_no_frame_of_ours(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run_cell(shell, HELPER, capsys)
    assert "----> 3 make_step()" in shown
    assert '----> 2     return sf.Executor(name="Bad Name"' in shown
    assert "InvalidError: The executor name 'Bad Name' cannot be used" in shown
    assert "model.py" not in shown
    assert "pydantic" not in shown


def test_the_users_own_error_stays_before_ours(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run_cell(shell, HANDLED, capsys)
    assert "ZeroDivisionError: division by zero" in shown
    assert shown.index("ZeroDivisionError") < shown.index("which led to:") < shown.index("NotFoundError")
    assert "application.py" not in shown


def test_an_error_that_is_shown_keeps_what_led_to_it(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(shell, HELPER, capsys)
    error = sys.last_value
    assert isinstance(error, InvalidError)
    assert isinstance(error.__cause__, ValidationError)


def test_the_errors_of_a_library_that_we_call_are_left_out_and_those_that_led_to_them(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run_cell(shell, REFUSED, capsys)
    assert "UnavailableError: The server at http://127.0.0.1:9 cannot be reached" in shown
    assert "httpcore" not in shown
    assert "which led to" not in shown


def test_the_users_other_errors_are_shown_as_ever(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run_cell(shell, CALLED, capsys)
    assert "AttributeError: module 'scanflow' has no attribute 'absent_name'" in shown
    assert "----> 3     return value * sf.absent_name" in shown
    assert "----> 4 double(1)" in shown
    assert "steps.py" not in shown, "the frame of ours between them"


MODEL = """
import numpy as np
from fractions import Fraction as F
threshold, rows = F(1, 2), 3
def prepare(values): return values
class Model(F):
    def predict(self, rows: list) -> np.ndarray:
        rows = prepare(rows)
        return np.asarray(rows).size > threshold
sf.Service(name="m", implementation=Model)
"""


def test_a_class_of_a_cell_is_refused_with_the_lines_of_the_file_that_it_needs(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, first, numpy, fractions, own = run_cell(shell, MODEL, capsys).strip().splitlines()
    assert first == "%%writefile model.py"
    assert (numpy, fractions) == ("import numpy as np", "from fractions import Fraction as F")
    assert own == "It uses what the notebook has as prepare, threshold: put that into the same file.", "rows is local"


WATCH = """
import numpy as np
from scanflow.agent import sensor
@sensor(sf.every(hours=1))
def look(runs): return np.mean(runs)
sf.Agent(name="watch", modules=[look])
"""


def test_a_sensor_of_a_cell_is_refused_with_the_lines_of_the_file_that_it_needs(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, message, first, numpy, ours, own = run_cell(shell, WATCH, capsys).strip().splitlines()
    assert "modules has 'look' itself" in message
    assert "Write modules=['watch.py']. In a notebook, begin its cell with:" in message
    assert (first, numpy, ours) == ("%%writefile watch.py", "import numpy as np", "import scanflow as sf")
    assert own == "from scanflow.agent.sensors.sensor import sensor"


def test_an_object_of_a_cells_class_is_refused_as_its_class_is_and_a_function_as_none(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = "class Made:\n    def predict(self, x): return x\nsf.Service(name='m', implementation=Made())"
    assert "Write implementation='model.py:Made'." in run_cell(shell, instance, capsys)
    function = "def predict(x): return x\nsf.Service(name='m', implementation=predict)"
    assert "implementation is the function 'predict', and a component is a class" in run_cell(shell, function, capsys)
