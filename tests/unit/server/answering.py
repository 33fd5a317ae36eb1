"""A server's application behind a real port, in a thread of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from scanflow.backends.service_records import ServiceRecord
from scanflow_server.app import create_app
from scanflow_server.server_context import ServerContext
from tests.waiting import PATIENCE_S, wait_until


def a_service(name: str, state: str) -> ServiceRecord:
    fields = {"name": name, "app": "a", "team": "t", "state": state, "url": "http://127.0.0.1:1", "folder": "/f"}
    return ServiceRecord.model_validate({**fields, "generation": 1, "shape": {"instances": 1}})


@contextmanager
def answering(context: ServerContext, *, control: bool = False) -> Iterator[str]:
    """Answer on a free port while inside; gives the address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        context.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(context, control=control), log_config=None, access_log=False, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started, "the server answers")
            yield context.url
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
