"""``python -m scanflow_agents FOLDER`` hosts one agent. Other commands: see :mod:`scanflow_agents.introspection`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    words = sys.argv[1:]
    del sys.argv[1:]  # a user's file may parse those that it finds
    if not words:
        sys.exit("The server starts this program. Use instead: scanflow up")
    if len(words) == 1:
        from scanflow_agents.host.main import main

        code = main(Path(words[0]).absolute())
    else:
        from scanflow_agents.introspection import main as answer

        code = answer(words)
    sys.stdout.flush()
    sys.stderr.flush()
    # Do not wait for threads of hanging sensors; everything is written.
    os._exit(code)
