"""The only door to ``obstore``: the objects below one address of an S3-compatible store, with our errors."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

from scanflow.errors import MissingExtraError, NotFoundError, UnavailableError
from scanflow.installation import explain_install

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Store

SCHEME: Final = "s3://"
_PREFIX: Final = "AWS_"
_CLIENT: Final[ClientConfig] = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "12h"}
"""A request may take as long as data flows: an archive is one."""

_PART_BYTES: Final = 8 * 1024 * 1024
_MAX_PARTS: Final = 9_000
"""S3 takes 10,000 parts of an object."""

_PARALLEL_PARTS: Final = 4
_CHUNK_BYTES: Final = 1024 * 1024


class ObjectInfo(NamedTuple):
    """One object."""

    name: str
    size_bytes: int
    modified: datetime


class ObjectStore:
    """The objects below an address, ``s3://bucket/prefix``. Threads may share it.

    What is written is there whole or not at all. Its methods raise UnavailableError where the store refuses or does not
    answer, with its own words.
    """

    def __init__(self, address: str, store: S3Store) -> None:
        self.address, self._store = address, store

    @classmethod
    def open(cls, address: str, variables: Mapping[str, str] | None) -> Self:
        """Return the store at an address; nothing is asked of it yet.

        Args:
            address: ``s3://bucket/prefix``.
            variables: What it is reached with (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ...), in place of all such
                variables of this process; None: those of this process.

        Raises:
            MissingExtraError: ``obstore`` is not installed.
        """
        try:
            from obstore.store import S3Store
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"Outputs in {address} need the store extra in the step's image. {explain_install('store')}"
            ) from error
        bucket, _, prefix = address.removeprefix(SCHEME).partition("/")
        with _replace_variables(variables), _translate_errors(address):
            plain = os.environ.get("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL", "")).startswith("http://")
            options: ClientConfig = {**_CLIENT}
            if plain:
                options["allow_http"] = True
            return cls(address, S3Store(bucket, prefix=prefix or None, client_options=options))

    def list_objects(self, folder: str) -> list[ObjectInfo]:
        """Return the objects in a folder and its subfolders, by name."""
        with _translate_errors(self.address):
            listed = [entry for chunk in self._store.list(folder) for entry in chunk]
        objects = [ObjectInfo(entry["path"], entry["size"], entry["last_modified"]) for entry in listed]
        return sorted(objects)

    def create(self, name: str) -> bool:
        """Create an empty object, and return whether it is new."""
        from obstore.exceptions import AlreadyExistsError, NotSupportedError

        with _translate_errors(self.address):
            try:
                self._store.head(name)  # some stores ignore the condition below
            except FileNotFoundError:
                pass
            else:
                return False
            try:
                self._store.put(name, b"", mode="create")
            except AlreadyExistsError:
                return False
            except NotSupportedError:
                self._store.put(name, b"")
        return True

    def write(self, name: str, content: bytes | Path) -> None:
        with _translate_errors(self.address):
            self._store.put(name, content, max_concurrency=_PARALLEL_PARTS)

    def read(self, name: str) -> bytes:
        """Return an object's content.

        Raises:
            NotFoundError: there is none of that name.
        """
        with _translate_errors(self.address, name):
            return bytes(self._store.get(name).bytes())

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        with _translate_errors(self.address):
            try:
                self._store.delete(name)
            except FileNotFoundError:
                pass

    @contextmanager
    def open_reader(self, name: str) -> Iterator[IO[bytes]]:
        """Lend a stream of an object's content.

        Raises:
            NotFoundError: there is none of that name.
        """
        with _translate_errors(self.address, name):
            chunks = iter(self._store.get(name).stream(min_chunk_size=_CHUNK_BYTES))
        yield cast("IO[bytes]", _Reader(self.address, chunks))

    @contextmanager
    def open_writer(self, name: str, size_bytes: int) -> Iterator[ObjectWriter]:
        """Lend a stream to an object of about that size, which replaces what was there once the context ends well."""
        import obstore

        part = max(_PART_BYTES, size_bytes // _MAX_PARTS)
        with _translate_errors(self.address):
            target = obstore.open_writer(self._store, name, buffer_size=part, max_concurrency=_PARALLEL_PARTS)
        writer = ObjectWriter(self.address, target)
        yield writer
        writer.finish()


class _Reader(io.RawIOBase):
    """A stream of an object's chunks."""

    def __init__(self, address: str, chunks: Iterator[Any]) -> None:
        self._address, self._chunks, self._rest = address, chunks, b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            with _translate_errors(self._address):
                chunk = next(self._chunks, None)
            if chunk is None:
                size = len(self._rest)
                break
            self._rest += bytes(chunk)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


class ObjectWriter:
    """A stream to an object, which is there once it is finished."""

    def __init__(self, address: str, target: Any) -> None:
        self._address, self._target = address, target

    def write(self, data: bytes) -> int:
        with _translate_errors(self._address):
            self._target.write(bytes(data))
        return len(data)

    def finish(self) -> None:
        with _translate_errors(self._address):
            self._target.close()


@contextmanager
def _replace_variables(variables: Mapping[str, str] | None) -> Iterator[None]:
    """Let this process have these variables of the store in place of its own, which a step may need for another one."""
    before = {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}
    if variables is not None:
        for name in before:
            del os.environ[name]
        os.environ.update({name: value for name, value in variables.items() if name.startswith(_PREFIX)})
    try:
        yield
    finally:
        if variables is not None:
            for name in [name for name in os.environ if name.startswith(_PREFIX)]:
                del os.environ[name]
            os.environ.update(before)


@contextmanager
def _translate_errors(address: str, name: str | None = None) -> Iterator[None]:
    """Raise our errors in place of the library's; ``name``: the object that may be missing."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        if name is not None:
            raise NotFoundError(f"There is no {name!r} in {address}.") from error
        raise _build_error(address, error) from error
    except (BaseError, PermissionError) as error:
        raise _build_error(address, error) from error


def _build_error(address: str, error: Exception) -> UnavailableError:
    words = str(error).partition("\n\nDebug source")[0].replace("\n", " ")
    return UnavailableError(
        f"The object store {address} failed: {words[:600]} -- Look at the bucket in SCANFLOW_KUBERNETES_OUTPUTS and at "
        "what SCANFLOW_KUBERNETES_OUTPUTS_SECRET has: scanflow doctor --backend kubernetes --thorough"
    )
