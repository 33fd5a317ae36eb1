"""``python -m scanflow_agents FOLDER``: one agent. With words before the folder's place: see ``asked``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    words = sys.argv[1:]
    if not words:
        sys.exit("This is what the server starts. You want: scanflow up")
    if len(words) == 1:
        from scanflow_agents.host.main import main

        code = main(Path(words[0]).absolute())
    else:
        from scanflow_agents.introspection import main as answer

        code = answer(words)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of sensors that hang must not keep the process; all that was to be written is.
    os._exit(code)
