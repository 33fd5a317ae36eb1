"""A stand-in for an instance: it speaks the control protocol and answers every request with its name.

``GET /?crash`` ends it with exit code 1, ``/?kill`` with SIGKILL, ``/?hang`` never answers anything again. A node's
parameter ``fail`` keeps it from starting: ``configuration`` for ever, ``crash`` as an accident would.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from scanflow.backends.local import seqpacket
from scanflow.wire import Desired, Exchange, InstanceSpec, decode


class Instance:
    def __init__(self, folder: Path) -> None:
        self.spec = decode(InstanceSpec, (folder / "instance.json").read_bytes())
        self.folder = folder
        self.selector = selectors.DefaultSelector()
        self.listeners: dict[str, socket.socket] = {}
        self.supervisor: socket.socket | None = None
        self.draining = False
        self.load(decode(Desired, Path(self.spec.desired).read_bytes()))

    def load(self, desired: Desired) -> None:
        for revision in desired.revisions:
            for node in revision.nodes:
                if node.parameters.get("fail") == "configuration" or (node.model and "broken" in node.model.path):
                    raise ValueError(f"{node.name} cannot be loaded")
                if node.parameters.get("fail") == "crash":
                    os._exit(3)
        self.desired = desired

    def run(self) -> None:
        control = seqpacket.listen(self.folder / "control")
        self.selector.register(control, selectors.EVENT_READ, self.meet)
        while not (self.draining and not self.listeners):
            for key, _ in self.selector.select():
                key.data(key.fileobj)

    def meet(self, control: socket.socket) -> None:
        self.supervisor, _ = control.accept()
        self.selector.register(self.supervisor, selectors.EVENT_READ, self.hear)

    def hear(self, sock: socket.socket) -> None:
        came = seqpacket.receive(sock)
        if came is None:
            self.selector.unregister(sock)
            sock.close()
            return
        message, fds = came
        body: dict[str, Any] = {}
        out: list[int] = []
        match message.kind:
            case "listen":
                self.listeners[message.key] = socket.socket(fileno=fds[0])
                self.selector.register(self.listeners[message.key], selectors.EVENT_READ, self.accept)
            case "ignore":
                self.ignore(message.key)
            case "take":
                taken = socket.socket(fileno=fds[0])
                self.selector.register(taken, selectors.EVENT_READ, self.answer)
                if len(fds) > 1:
                    self.reply(taken, os.pread(fds[1], 65536, 0))
            case "apply":
                try:
                    self.load(decode(Desired, message.body))
                except ValueError as error:
                    body = {"error": str(error)}
            case "state" if "listener" in message.body:
                body, out = dict(message.body), [self.listeners[message.body["listener"]].fileno()]
            case "state":
                body = {
                    "generation": self.desired.generation,
                    "ready": not self.draining,
                    "listeners": list(self.listeners),
                    "in_flight": 0,
                    "queue": 0,
                }
            case "drain":
                self.draining = True
                for key in list(self.listeners):
                    self.ignore(key)
        seqpacket.send(sock, Exchange(kind="reply", key=message.key, body=body), out)

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
        self.selector.register(sock, selectors.EVENT_READ, self.answer)

    def answer(self, sock: socket.socket) -> None:
        request = sock.recv(65536)
        if not request:
            self.selector.unregister(sock)
            sock.close()
            return
        self.reply(sock, request)

    def reply(self, sock: socket.socket, request: bytes) -> None:
        line = request.partition(b"\r\n")[0]
        if b"?crash" in line:
            os._exit(1)
        if b"?kill" in line:
            os.kill(os.getpid(), signal.SIGKILL)
        if b"?hang" in line:
            threading.Event().wait()
        revisions = [revision.id for revision in self.desired.revisions]
        text = json.dumps({"instance": self.spec.instance, "pid": os.getpid(), "revisions": revisions}).encode()
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        instance = Instance(folder)
    except ValueError as error:
        (folder / "failure.json").write_text(json.dumps({"error": str(error)}))
        sys.exit(78)
    instance.run()


main()
