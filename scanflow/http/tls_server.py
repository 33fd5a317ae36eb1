"""uvicorn's server with bounds: on the time of TLS handshakes, and on connections while few files are left. It takes a
renewed certificate while it runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from scanflow.http.acceptor import Acceptor
from scanflow.http.tls import HANDSHAKE_S, ServerTls
from scanflow.http.tls_files import TlsFiles


class TlsServer(uvicorn.Server):
    """Serves over TLS if its configuration names a certificate, from sockets that it is given.

    Its connections are :class:`scanflow.http.connections.LimitedConnection`.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept with :class:`Acceptor` in the place of the loop's own server, which uvicorn would have."""
        if self.config.ssl is not None:
            self._choose_certificates()
        loop: Any = asyncio.get_running_loop()
        loop.create_server = self._listen
        try:
            await super().startup(sockets)
        finally:
            del loop.create_server

    async def _listen(
        self, make_connection: Callable[[], asyncio.Protocol], *, sock: socket.socket, ssl: Any, backlog: int
    ) -> Acceptor:
        sock.listen(backlog)
        options = {} if ssl is None else {"ssl": ssl, "ssl_handshake_timeout": HANDSHAKE_S}
        connections: Any = self.server_state.connections
        return Acceptor(sock, make_connection, connections, **options)

    def _choose_certificates(self) -> None:
        config = self.config
        tls = ServerTls(TlsFiles(certificate=str(config.ssl_certfile), key=str(config.ssl_keyfile)))

        def choose_context(connection: Any, _name: object, _context: object) -> None:
            connection.context = tls.get_context()

        if config.ssl is not None:
            config.ssl.sni_callback = choose_context
