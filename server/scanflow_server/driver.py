"""``python -m scanflow_server.driver FOLDER``: does the job a folder describes, and outlives the server.

A run is driven here, and a service changed, so the user's code is never in the server's own process.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from scanflow_server.jobs import Job

_log = logging.getLogger("scanflow_server.driver")


def main(folder: Path) -> int:
    """Do the job, and return the exit code; how it ended is in the folder."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    job = Job(folder)
    order = job.order
    if job.result is not None:
        return 0
    if order["what"] == "run":
        from scanflow_server.run_job import drive

        drive(job, order)
    else:
        from scanflow_server.operation_job import operate

        operate(job, order)
    _log.info("done: %s", order["what"])
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("This is what the server starts. You want: scanflow run")
    sys.exit(main(Path(sys.argv[1]).absolute()))
