"""``python -m scanflow_agents FOLDER``: one agent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scanflow_agents.program import main

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("This is what the server starts. You want: scanflow up")
    code = main(Path(sys.argv[1]).absolute())
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of sensors that hang must not keep the process; all that was to be written is.
    os._exit(code)
