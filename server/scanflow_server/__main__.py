"""``python -m scanflow_server``: the control plane."""

from __future__ import annotations

import sys

from scanflow_server.main import main

if __name__ == "__main__":
    sys.exit(main())
