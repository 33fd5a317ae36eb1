"""An API server of a few lines, which answers as a test's handler does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serve_api(handler: type[BaseHTTPRequestHandler], folder: Path) -> Iterator[str]:
    """Serve it on loopback, and yield the kubeconfig that names it, which is written into ``folder``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "users": [{"name": "me", "user": {}}],
        "current-context": "here",
    }
    (folder / "config").write_text(json.dumps(config), encoding="utf-8")
    yield str(folder / "config")
    server.shutdown()
    server.server_close()
