"""``python -m scanflow.backends.local.services.supervisor FOLDER``."""

from __future__ import annotations

import sys

from scanflow.backends.local.services.supervisor.loop import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
