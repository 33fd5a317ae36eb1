"""``python -m scanflow_server.driver FOLDER [LOCK]``: does the job a folder describes, and outlives the server.

A run is driven here, and a service changed, so the user's code is never in the server's own process. ``LOCK`` is the
number of the open file whose lock the server hands on; without it the lock is taken here.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from pathlib import Path

from scanflow_server.jobs import Job

__all__ = ["main"]

_log = logging.getLogger("scanflow_server.driver")


def main(folder: Path, lock: int | None = None) -> int:
    """Do the job, and return the exit code; how it ended is in the folder."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if lock is None:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.set_inheritable(lock, False)  # what is started here must not keep it when this process is gone
    job = Job(folder)
    order = job.order
    if job.result is not None:
        return 0
    if order["what"] == "run":
        from scanflow_server.driving import drive

        drive(job, order)
    else:
        from scanflow_server.operating import operate

        operate(job, order)
    _log.info("done: %s", order["what"])
    return 0


if __name__ == "__main__":
    if len(sys.argv) not in {2, 3}:
        sys.exit("This is what the server starts. You want: scanflow run")
    sys.exit(main(Path(sys.argv[1]).absolute(), int(sys.argv[2]) if len(sys.argv) == 3 else None))
