"""A server that counts what it asks of a cluster: ``python -m tests.benchmarks.counted_server FILE ARGUMENT...``.

The count of requests is written to ``FILE`` twice a second, with the seconds that looks at all services took.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow_server.control.service_controller import ServicesController
from scanflow_server.main import main

_lock = threading.Lock()
_asked: dict[str, int] = {}
_ticks: list[float] = []


def _count(name: str) -> None:
    own = getattr(Cluster, name)

    def count_request(self: Cluster, *words: Any, **named: Any) -> Any:
        with _lock:
            _asked[name] = _asked.get(name, 0) + 1
        return own(self, *words, **named)

    setattr(Cluster, name, count_request)


def _time_ticks() -> None:
    own = ServicesController.tick

    def time_pass(self: ServicesController) -> float:
        began = time.monotonic()
        pause_s = own(self)
        with _lock:
            _ticks.append(time.monotonic() - began)
        return pause_s

    ServicesController.tick = time_pass  # type: ignore[method-assign]


def _write(file: Path) -> None:
    pause = threading.Event()
    while not pause.wait(0.5):
        with _lock:
            text = json.dumps({"asked": sum(_asked.values()), "ticks": _ticks})
        draft = file.with_suffix(".new")
        draft.write_text(text)
        draft.replace(file)


if __name__ == "__main__":
    target = Path(sys.argv.pop(1))
    for _name in ("_send", "_stream"):
        _count(_name)
    _time_ticks()
    threading.Thread(target=_write, args=(target,), daemon=True).start()
    sys.exit(main())
