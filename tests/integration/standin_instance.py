"""A stand-in for an instance: it speaks the control protocol and answers every request with its name.

``GET /?crash`` ends it with exit code 1. A node's parameter ``fail`` keeps it from starting: ``configuration`` for
ever, ``crash`` as an accident would, ``once`` the first time after it has served. Version 13 of a model cannot be
loaded either.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
from pathlib import Path
from typing import Any

from scanflow.instance_messages import ControlMessage, DesiredInstanceState, InstanceSpec, decode
from scanflow.processes import seqpacket


class Instance:
    def __init__(self, folder: Path) -> None:
        self.spec = decode(InstanceSpec, (folder / "instance.json").read_bytes())
        self.folder = folder
        self.selector = selectors.DefaultSelector()
        self.listeners: dict[str, socket.socket] = {}
        self.clients: set[socket.socket] = set()
        self.draining = False
        self.answered = 0
        self.load(decode(DesiredInstanceState, Path(self.spec.desired).read_bytes()))

    def load(self, desired: DesiredInstanceState) -> None:
        for revision in desired.revisions:
            for node in revision.nodes:
                fails = node.parameters.get("fail")
                if fails == "configuration" or (node.model and node.model.version == 13):
                    raise ValueError(f"{node.name} cannot be loaded")
                if fails == "once" and self.folder.name == "2":
                    raise ValueError(f"{node.name} cannot be loaded this time")
                if fails == "crash":
                    os._exit(3)
        self.desired = desired

    def run(self) -> None:
        control = seqpacket.listen(self.folder / "control")
        self.selector.register(control, selectors.EVENT_READ, self.meet)
        self.listen("", socket.socket(fileno=self.spec.listen_fd))
        while not (self.draining and not self.clients):
            for key, _ in self.selector.select():
                key.data(key.fileobj)

    def listen(self, key: str, listener: socket.socket) -> None:
        self.listeners[key] = listener
        self.selector.register(listener, selectors.EVENT_READ, self.accept)

    def meet(self, control: socket.socket) -> None:
        peer = seqpacket.accept(control)
        if peer is not None:
            self.selector.register(peer, selectors.EVENT_READ, self.receive_state)

    def receive_state(self, sock: socket.socket) -> None:
        came = seqpacket.receive(sock)
        if came is None:
            self.selector.unregister(sock)
            sock.close()
            return
        message, fds = came
        body: dict[str, Any] = {}
        match message.kind:
            case "listen":
                self.listen(message.key, socket.socket(fileno=fds[0]))
            case "ignore":
                self.ignore(message.key)
            case "apply":
                try:
                    self.load(decode(DesiredInstanceState, message.body))
                except ValueError as error:
                    body = {"error": str(error)}
            case "state":
                body = {
                    "generation": self.desired.generation,
                    "ready": not self.draining,
                    "draining": self.draining,
                    "in_flight": 0,
                    "queue": 0,
                    "metrics": [["scanflow_requests_total", {"revision": "r1", "code": "200"}, self.answered]],
                }
            case "drain":
                self.draining = True
                for key in list(self.listeners):
                    self.ignore(key)
                for client in list(self.clients):
                    self.leave(client)
            case "reply":
                return
        seqpacket.send(sock, ControlMessage(kind="reply", key=message.key, body=body))

    def ignore(self, key: str) -> None:
        if key in self.listeners:
            listener = self.listeners.pop(key)
            self.selector.unregister(listener)
            listener.close()

    def accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        sock.setblocking(True)
        self.clients.add(sock)
        self.selector.register(sock, selectors.EVENT_READ, self.answer)

    def leave(self, sock: socket.socket) -> None:
        self.selector.unregister(sock)
        self.clients.discard(sock)
        sock.close()

    def answer(self, sock: socket.socket) -> None:
        request = sock.recv(65536)
        if not request:
            self.leave(sock)
            return
        line = request.partition(b"\r\n")[0]
        if b"?crash" in line:
            os._exit(1)
        self.answered += 1
        revisions = [revision.id for revision in self.desired.revisions]
        text = json.dumps({"instance": self.spec.instance, "pid": os.getpid(), "revisions": revisions}).encode()
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        instance = Instance(folder)
    except ValueError as error:
        print(error, file=sys.stderr)
        (folder / "failure.json").write_text(json.dumps({"error": str(error)}))
        sys.exit(78)
    instance.run()


main()
