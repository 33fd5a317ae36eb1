"""The program of an instance: ``python -m scanflow_serving FOLDER``, where ``FOLDER`` holds ``instance.json``.

What must come first comes first: the CPUs, the memory and the sizes of thread pools, before anything that starts
threads is imported; the keeper, before there are threads at all.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
from pathlib import Path
from typing import Final

from scanflow.backends.local import binding
from scanflow.backends.local.open_files import open_many
from scanflow.errors import ScanflowError, UsageError
from scanflow.turns import stay_behind, take_short_turns
from scanflow.wire import Desired, InstanceSpec, decode
from scanflow_serving import keeper
from scanflow_serving.slots import Table

__all__ = ["CONFIGURATION", "UNHEALTHY", "main"]

UNHEALTHY: Final = 70
"""Exit code: too many of its threads hang; another process would be well."""

CONFIGURATION: Final = 78
"""Exit code: it cannot be started as it is, and trying again would not help; ``failure.json`` says why."""

_FAREWELL_S: Final = 2.0

_log = logging.getLogger(__name__)


def main(folder: Path) -> int:
    """Run an instance until it is told to end, and return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        spec = decode(InstanceSpec, (folder / "instance.json").read_bytes())
        os.environ.update(spec.threads)
        about_memory = binding.apply(spec.cpus, spec.memory_nodes)
        if about_memory:
            _log.info(about_memory)
        open_many()
        table = Table()
        keeper.start(table, supervisor=spec.supervisor, instance=spec.instance)
    except (ScanflowError, OSError) as error:
        return _fail(folder, error)
    import uvloop  # after the keeper, which has no use for it

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(spec, folder, table))


async def _serve(spec: InstanceSpec, folder: Path, table: Table) -> int:
    """Load, answer, and leave."""
    from scanflow_serving.connections import Connections
    from scanflow_serving.control import Control
    from scanflow_serving.grpc_start import start_grpc
    from scanflow_serving.routes import Application

    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    codes = [0]

    def unwell() -> None:
        codes[0] = UNHEALTHY
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    application = Application(spec, loop=loop, on_unhealthy=unwell)
    connections = Connections(loop, application.handle, spec.limits, table)
    control = Control(loop, folder / "control", application, connections, over.set)
    try:
        control.start()
        desired = Path(spec.desired).read_bytes()  # noqa: ASYNC240 - nobody is served yet
        await application.apply(decode(Desired, desired))
        face = await start_grpc(application, spec)
    except (ScanflowError, OSError) as error:
        control.close()
        connections.close()
        return _fail(folder, error)
    take_short_turns(inherited=True)  # not before: whoever answers callers already comes first while this one loads
    gc.collect()
    gc.freeze()  # what was loaded stays: collections need not walk through it
    _log.info("ready: %s of %s", spec.instance, spec.service)

    await over.wait()
    application.draining = True
    connections.leave()
    within_s = spec.limits.deadline_s + _FAREWELL_S
    goodbye = None if face is None else loop.create_task(face.stop())
    if not await connections.gone(within_s):
        _log.warning("%d connections were cut off after %.0f s", len(connections), within_s)
    if goodbye is not None:
        await goodbye
    stay_behind(os.getpid(), True)  # it answers nobody any more, and tidying up takes a while
    connections.close()
    await control.flushed(_FAREWELL_S)
    control.close()
    await application.close()
    return codes[0]


def _fail(folder: Path, error: Exception) -> int:
    _log.error("It cannot be started: %s", error)
    draft = folder / "failure.json.part"
    draft.write_text(json.dumps({"error": str(error)}), encoding="utf-8")
    draft.rename(folder / "failure.json")
    return CONFIGURATION if isinstance(error, UsageError) else 1
