"""``python -m scanflow_serving FOLDER``: one instance of a service."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scanflow_serving.main import main

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("The supervisor starts this program. Use instead: scanflow deploy")
    code = main(Path(sys.argv.pop(1)).absolute())
    sys.stdout.flush()
    sys.stderr.flush()
    # Hanging threads of components must not keep the process alive.
    os._exit(code)
