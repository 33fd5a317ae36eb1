"""What the server looks at before it uses its database: a damaged one, an emptied one, another's."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from scanflow.errors import ScanflowError, UnavailableError, UsageError
from scanflow.settings import Settings
from scanflow_server.auth import register_home
from scanflow_server.main import prepare_database
from scanflow_server.server_context import make_context
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store.base import open_store


def start(home: Path, database: str | None = None) -> None:
    """Do what a server does with its database when it starts."""
    settings = ServerSettings.model_validate({"library": Settings(home=home), "database_url": database})
    context = make_context(settings)
    settings.folder.mkdir(parents=True, exist_ok=True)
    try:
        prepare_database(context)
        register_home(context)
    finally:
        context.store.close()


@pytest.fixture
def file(home: Path) -> Path:
    """The database of a home that had a server."""
    start(home)
    start(home)
    return home / "server" / "scanflow.db"


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statement)


def clear_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            if not name.startswith(("sqlite_", "alembic")):
                connection.execute(f"DELETE FROM {name}")
        connection.commit()


def delete_file(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()


@pytest.mark.parametrize("empty", [delete_file, lambda path: path.write_bytes(b""), clear_tables])
def test_an_emptied_database_is_noticed_and_said_what_to_do_about(
    home: Path, file: Path, empty: Callable[[Path], object]
) -> None:
    empty(file)
    with pytest.raises(UsageError, match="is empty"):
        start(home)
    message = r"is empty, and this home has used it.*scanflow restore.*delete '"
    with pytest.raises(UsageError, match=message) as caught:
        start(home)
    Path(str(caught.value).rpartition("delete '")[2].rstrip("'")).unlink()
    start(home)
    start(home)


def test_a_damaged_database_is_refused_before_anything_is_written(home: Path, file: Path) -> None:
    change(file, "PRAGMA wal_checkpoint(TRUNCATE)")
    content = file.read_bytes()
    file.write_bytes(damaged := content[:4096] + random.Random(1).randbytes(len(content) - 4096))
    with pytest.raises(UnavailableError, match=r"is damaged: .*scanflow restore"):
        start(home)
    assert file.read_bytes() == damaged
    file.write_bytes(b"this is not a database" * 1000)
    with pytest.raises(ScanflowError, match="not a database"):
        start(home)


def test_a_database_that_lost_a_table_is_refused_by_its_name(home: Path, file: Path) -> None:
    change(file, "DROP TABLE label_votes; DROP TABLE notified")
    with pytest.raises(UsageError, match="has lost its tables label_votes, notified"):
        start(home)


def test_a_newer_database_is_refused(home: Path, file: Path) -> None:
    change(file, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(UsageError, match="newer scanflow"):
        start(home)


def test_another_database_of_a_home_may_be_empty_and_a_home_may_be_moved(
    home: Path, file: Path, tmp_path: Path
) -> None:
    start(home, f"sqlite:///{tmp_path / 'other.db'}")
    (tmp_path / "other.db").unlink()
    with pytest.raises(UsageError, match="is empty"):
        start(home, f"sqlite:///{tmp_path / 'other.db'}")
    shutil.copytree(home, tmp_path / "copy")
    (tmp_path / "copy" / "server" / "store.json").unlink()
    start(tmp_path / "copy")
    home.rename(tmp_path / "moved")
    start(tmp_path / "moved")
    delete_file(tmp_path / "copy" / "server" / file.name)
    (tmp_path / "copy").rename(tmp_path / "moved copy")
    with pytest.raises(UsageError, match="is empty"):
        start(tmp_path / "moved copy")


def test_a_full_disk_is_called_so(home: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"
    with closing(open_store(f"sqlite:///{file}")) as store:
        monkeypatch.setattr("scanflow.files.disk.find_full_disk", lambda _path: "/data")
        monkeypatch.setattr("scanflow_server.store.base.find_full_disk", lambda _path: "/data")
        with pytest.raises(UnavailableError, match="its disk is full: no space left on /data"), store.read():
            raise OperationalError("SELECT 1", {}, error)
