"""uvicorn's server, whose TLS handshakes are bounded in time, and which takes a renewed certificate while it runs."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

import uvicorn

from scanflow.http.tls import HANDSHAKE_S, ServerTls
from scanflow.http.tls_files import TlsFiles


class TlsServer(uvicorn.Server):
    """Serves over TLS if its configuration names a certificate."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept: uvicorn passes no timeout of handshakes to the loop, whose own is a minute."""
        config = self.config
        if config.ssl is None:
            await super().startup(sockets)
            return
        tls = ServerTls(TlsFiles(certificate=str(config.ssl_certfile), key=str(config.ssl_keyfile)))

        def choose_context(connection: Any, _name: object, _context: object) -> None:
            connection.context = tls.get_context()

        config.ssl.sni_callback = choose_context
        loop: Any = asyncio.get_running_loop()
        loop.create_server = partial(loop.create_server, ssl_handshake_timeout=HANDSHAKE_S)
        try:
            await super().startup(sockets)
        finally:
            del loop.create_server
