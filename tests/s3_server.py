"""A double of an S3-compatible store, in memory, which answers over HTTP the requests that clients send."""

from __future__ import annotations

import hashlib
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape, unescape

KEY_ID, KEY = "who", "secret"


class S3Store:
    """The objects, by bucket and name, and what was asked."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.modified: dict[str, str] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.refused: str | None = None
        """What the names of objects that may not be written match."""

        self.requests: list[tuple[str, str]] = []
        self.address = ""

    @property
    def variables(self) -> dict[str, str]:
        """What a client reaches it with."""
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_REGION": "here",
            "AWS_ENDPOINT_URL": self.address,
        }

    def put(self, name: str, content: bytes) -> None:
        self.objects[name] = content
        self.modified[name] = datetime.now(UTC).isoformat().replace("+00:00", "Z")


@contextmanager
def run_s3_server() -> Iterator[S3Store]:
    """Lend a store that answers on loopback."""
    store = S3Store()

    class Handler(_Handler):
        objects = store

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        store.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: S3Store

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _begin(self) -> tuple[str, dict[str, str], bytes]:
        path, _, query = self.path.partition("?")
        name = urllib.parse.unquote(path).lstrip("/")
        words = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.objects.requests.append((self.command, name))
        return name, words, self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header.replace("_", "-"), value)
        self.send_header("Content-Length", headers.get("content_length", str(len(body))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _may(self, name: str) -> bool:
        is_signed = f"Credential={KEY_ID}/" in self.headers.get("Authorization", "")
        if not is_signed or "x-amz-security-token" in self.headers:
            self._refuse(403, "InvalidAccessKeyId")
            return False
        if self.command in {"PUT", "POST"} and self.objects.refused and re.search(self.objects.refused, name):
            self._refuse(403, "AccessDenied")
            return False
        return True

    def do_GET(self) -> None:
        name, words, _ = self._begin()
        if not self._may(name):
            return
        if "list-type" in words:
            self._list(name.rstrip("/"), words.get("prefix", ""))
            return
        content = self.objects.objects.get(name)
        if content is None:
            self._refuse(404, "NoSuchKey")
            return
        headers = {"ETag": _hash(content), "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
            headers["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
            self._answer(206, content[first : last + 1], **headers)
        else:
            self._answer(200, content, **headers)

    do_HEAD = do_GET  # noqa: N815  the name that the base class calls

    def _list(self, bucket: str, prefix: str) -> None:
        names = sorted(name for name in self.objects.objects if name.startswith(f"{bucket}/{prefix}"))
        entries = "".join(
            f"<Contents><Key>{escape(name.removeprefix(f'{bucket}/'))}</Key>"
            f"<LastModified>{self.objects.modified[name]}</LastModified>"
            f"<ETag>x</ETag><Size>{len(self.objects.objects[name])}</Size></Contents>"
            for name in names
        )
        text = f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        self._answer(200, text.encode())

    def do_PUT(self) -> None:
        name, words, content = self._begin()
        if not self._may(name):
            return
        if "partNumber" in words:
            self.objects.parts[words["uploadId"]][int(words["partNumber"])] = content
        elif self.headers.get("If-None-Match") == "*" and name in self.objects.objects:
            self._refuse(412, "PreconditionFailed")
            return
        else:
            self.objects.put(name, content)
        self._answer(200, ETag=_hash(content))

    def do_POST(self) -> None:
        name, words, content = self._begin()
        if not self._may(name):
            return
        if "delete" in words:
            keys = re.findall(r"<Key>(.*?)</Key>", content.decode())
            for key in keys:
                self.objects.objects.pop(f"{name.rstrip('/')}/{unescape(key)}", None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        elif "uploads" in words:
            upload = str(len(self.objects.parts))
            self.objects.parts[upload] = {}
            self._answer(
                200,
                f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode(),
            )
        else:
            parts = self.objects.parts.pop(words["uploadId"])
            self.objects.put(name, b"".join(parts[number] for number in sorted(parts)))
            self._answer(200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

    def do_DELETE(self) -> None:
        name, _, _ = self._begin()
        if self._may(name):
            self.objects.objects.pop(name, None)
            self._answer(204)


def _hash(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
