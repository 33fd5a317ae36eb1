"""A private PostgreSQL for tests: started in a folder of its own, heard by nobody else, gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest

from scanflow.processes.ports import choose_port
from tests.waiting import patient

_USERS = ("postgres", "nobody")
_TIMEOUT_S = patient(120)
_SETTINGS = "-c listen_addresses= -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=200"


class Postgres:
    def __init__(self, folder: Path, user: str, *, at: str = "", password: str = "") -> None:
        self._folder, self._user, self._at, self._password = folder, user, at, password
        self._numbers = count(1)

    def address(self, database: str) -> str:
        port = f"&port={self._at.rpartition(':')[2]}" if self._at else ""
        return f"postgresql://{self._user}@/{database}?host={self._folder}{port}"

    def new_database(self) -> str:
        name = f"test{next(self._numbers)}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.address(name)

    def new_remote_database(self) -> str:
        """Return the address by which others than this machine's processes reach a new one."""
        name = self.new_database().partition("?")[0].rpartition("/")[2]
        return f"postgresql://{self._user}:{self._password}@{self._at}/{name}"


@contextmanager
def private_postgres(*, host: str = "", password: str = "") -> Iterator[Postgres]:
    """Start one, or skip the test where PostgreSQL is not installed.

    ``host``: an address of this machine at which it is heard too, by those who know the password.
    """
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    user = _find_unprivileged_user() if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="scanflow-pg-"))  # not pytest's: that one is for this user only
    if user is not None:
        shutil.chown(folder, user)
    try:
        _run(user, [str(programs / "initdb"), "-D", str(folder / "data"), "-A", "trust", "-U", "scanflow", "-N"])
        settings, at = _SETTINGS, ""
        if host:
            port = choose_port(None, host=host, taken=(), what="PostgreSQL")
            settings, at = f"{_SETTINGS} -c listen_addresses={host} -p {port}", f"{host}:{port}"
            with (folder / "data" / "pg_hba.conf").open("a") as hosts:
                hosts.write("host all all 0.0.0.0/0 scram-sha-256\n")
        control = [str(programs / "pg_ctl"), "-D", str(folder / "data"), "-w", "-t", f"{_TIMEOUT_S:.0f}"]
        _run(user, [*control, "-l", str(folder / "log"), "-o", f"{settings} -k {folder}", "start"])
        try:
            server = Postgres(folder, "scanflow", at=at, password=password)
            if host:
                with psycopg.connect(server.address("postgres"), autocommit=True) as connection:
                    connection.execute(f"ALTER USER scanflow PASSWORD '{password}'".encode())
            yield server
        finally:
            _run(user, [*control, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    folders.sort(key=lambda path: int(path.parent.name) if path.parent.name.isdecimal() else 0)
    if folders:
        return folders[-1]
    there = shutil.which("initdb")
    return None if there is None else Path(there).parent


def _find_unprivileged_user() -> str:
    for name in _USERS:
        if subprocess.run(["id", name], capture_output=True, check=False).returncode == 0:
            return name
    pytest.skip(f"PostgreSQL does not run as root, and there is no user {' or '.join(_USERS)} to run it as.")


def _run(user: str | None, command: Sequence[str]) -> None:
    other = [] if user is None else ["runuser", "-u", user, "--"]
    log = tempfile.TemporaryFile()  # noqa: SIM115  a pipe would be held open by the server that is started
    done = subprocess.run(
        [*other, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", timeout=_TIMEOUT_S, check=False
    )
    log.seek(0)
    output = log.read().decode(errors="replace")
    log.close()
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{output}"
