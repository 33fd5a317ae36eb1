"""What a notebook shows: by IPython's own formatter with our types registered, and by a kernel that runs cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from IPython.core.formatters import DisplayFormatter

from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.names import RunName, StepName
from scanflow_client.notebook import register_with
from tests.waiting import PATIENCE_S


def render_bundle(value: Any) -> dict[str, str]:
    """Return what a notebook's file holds of a cell's value, by its MIME type."""
    formatter = DisplayFormatter()
    register_with(formatter)
    bundle: dict[str, str] = formatter.format(value, include={"text/plain", "text/html"})[0]
    return bundle


def build_run(state: Any, *tasks: TaskRecord, **more: Any) -> RunRecord:
    name = RunName("tall-fox-1")
    return RunRecord(name=name, app="shop", team="t", workflow="w", state=state, created=1.0, tasks=tasks, **more)


def build_task(name: str, state: Any, **more: Any) -> TaskRecord:
    return TaskRecord(task=StepName(name), step=name.partition(".")[0], state=state, **more)


class Output(NamedTuple):
    """An output of a cell: ``stream``, ``display_data``, ``update_display_data``, ``execute_result`` or ``error``."""

    kind: str
    content: dict[str, Any]

    @property
    def html(self) -> str:
        return str(self.content["data"]["text/html"])


class Kernel:
    """A notebook's kernel."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import KernelManager

        self._manager = KernelManager(transport="ipc", ip=str(folder / "kernel"))
        self._manager.start_kernel(cwd=str(folder))
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE_S)

    def run(self, cell: str) -> list[Output]:
        """Run a cell, and return its outputs; an AssertionError has its traceback."""
        outputs, reply = self.run_any(cell)
        assert reply["status"] == "ok", "\n".join(reply["traceback"])
        return outputs

    def run_any(self, cell: str, *, timeout_s: float = PATIENCE_S) -> tuple[list[Output], dict[str, Any]]:
        """Run a cell, which may fail, and return its outputs and the reply."""
        outputs: list[Output] = []

        def collect(message: dict[str, Any]) -> None:
            if message["msg_type"] not in {"status", "execute_input"}:
                outputs.append(Output(message["msg_type"], message["content"]))

        reply = self._client.execute_interactive(cell, timeout=timeout_s, output_hook=collect)
        return outputs, reply["content"]

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
