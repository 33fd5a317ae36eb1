"""Backups of a home: what is in them, what is refused, and that nothing is restored by halves."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import sqlite3
import stat
import tarfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from scanflow.backends import journal
from scanflow.backends.journal import Journal
from scanflow.errors import InvalidError, ScanflowError, UnavailableError, UsageError
from scanflow.settings import Settings
from scanflow_client.backup.backup_manifest import (
    FILES,
    FORMAT,
    HEADER,
    MANIFEST,
    Entry,
    Header,
    Manifest,
    check_archive,
)
from scanflow_client.backup.restore import restore_home
from scanflow_client.backup.save import save_home

OUTPUTS = "environments/scanflow-shop-data/runs/calm-fox-1/outputs"


@pytest.fixture
def saved_home(tmp_path: Path) -> Path:
    """A home with a run, and what a backup has to take or leave."""
    home = tmp_path / "saved"
    outputs = home / OUTPUTS
    (outputs / "empty").mkdir(parents=True, mode=0o700)
    (outputs / "train").mkdir()
    (outputs / "train" / "model é\udcff.bin").write_bytes(os.urandom(3000))
    (outputs / "train" / "run.sh").write_text("#!/bin/sh\n")
    (outputs / "train" / "run.sh").chmod(0o700)
    (outputs / "train" / "own.db").write_bytes(b"SQLite format 3\x00, and a step's own from there on")
    (outputs / "again").symlink_to("train")
    (home / "token").write_text("secret")
    with closing(Journal(home / "journal.db")):
        pass
    return home


def save(home: Path, name: str = "backup.tar.gz") -> Path:
    file = home.parent / name
    save_home(Settings(home=home), file)
    return file


def list_content(folder: Path) -> dict[str, object]:
    """Return what is below a folder; databases by their tables."""
    content: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            content[name] = ("link", os.readlink(path))  # noqa: PTH115
        elif path.is_dir():
            content[name] = "folder"
        elif not name.startswith("journal.db"):
            content[name] = (path.read_bytes(), stat.S_IMODE(path.stat().st_mode) & 0o100)
    return content


def test_what_is_restored_is_what_was_saved(saved_home: Path, tmp_path: Path) -> None:
    file = save(saved_home)
    result = restore_home(file, now := tmp_path / "new" / "now")
    assert list_content(now) == list_content(saved_home)
    assert result.home == str(now)
    private = [path for path in (now, *now.rglob("*"), file) if not path.is_symlink()]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in private} == {0}
    assert {path.name for path in now.parent.iterdir()} == {"now"}, "nothing is left beside it"
    now.rename(tmp_path / "then")
    now.mkdir()
    restore_home(file, now)
    assert list_content(now) == list_content(saved_home), "into an empty folder, too"


def test_databases_are_saved_as_they_are_at_one_moment_while_they_are_written(saved_home: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(saved_home / "journal.db", isolation_level=None)) as database:
        database.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE a (n); CREATE TABLE b (n); PRAGMA wal_autocheckpoint = 0"
        )
    over, begun = threading.Event(), threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(saved_home / "journal.db", isolation_level=None, timeout=60)) as connection:
            while not over.is_set():
                connection.executescript("BEGIN IMMEDIATE; INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); COMMIT")
                begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    begun.wait()
    try:
        file = save(saved_home)
    finally:
        over.set()
        writer.join()
    restore_home(file, tmp_path / "now")
    with closing(sqlite3.connect(tmp_path / "now" / "journal.db")) as restored:
        first, second = (restored.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in "ab")
    assert first == second >= 1
    assert not list((tmp_path / "now").glob("journal.db-*"))


def test_what_names_processes_of_the_saved_home_is_left_out(saved_home: Path, tmp_path: Path) -> None:
    attempt = saved_home / "environments" / "e" / "runs" / "r" / "steps" / "s" / "1"
    attempt.mkdir(parents=True)
    os.mkfifo(attempt / "alive")
    for name in ("spec.json", "started", "claim", "exit.part", "stdout.log"):
        (attempt / name).write_text("{}")
    (saved_home / OUTPUTS / "train" / "started").write_text("a step's own file")
    for folder in ("venvs/abc", "server/daemons/server"):
        (saved_home / folder).mkdir(parents=True)
    (saved_home / "server" / "up.json").write_text("{}")
    restore_home(save(saved_home), now := tmp_path / "now")
    assert {path.name for path in (now / attempt.relative_to(saved_home)).iterdir()} == {"spec.json", "stdout.log"}
    assert (now / OUTPUTS / "train" / "started").exists()
    assert not (now / "venvs").exists()
    assert list((now / "server").iterdir()) == []


def test_a_backup_replaces_nothing_and_says_what_it_cannot_hold(
    saved_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(saved_home)
    before = file.read_bytes()
    with pytest.raises(InvalidError, match="exists already"):
        save(saved_home)
    assert file.read_bytes() == before
    with pytest.raises(UsageError, match="would lie in the home"):
        save_home(Settings(home=saved_home), saved_home / "backup.tar.gz")
    with pytest.raises(UsageError, match="nothing to save"):
        save_home(Settings(home=tmp_path / "none"), tmp_path / "other")
    with pytest.raises(
        UsageError, match=r"SCANFLOW_TRACKER_URI names a database elsewhere.*env -u SCANFLOW_TRACKER_URI"
    ):
        save_home(Settings(home=saved_home, tracker_uri="sqlite:////x.db"), tmp_path / "other")
    monkeypatch.setenv("SCANFLOW_DATABASE_URL", "postgresql://host/db")
    with pytest.raises(UsageError, match="SCANFLOW_DATABASE_URL"):
        save(saved_home, "other")
    monkeypatch.delenv("SCANFLOW_DATABASE_URL")
    damage_page(saved_home / "journal.db")
    with pytest.raises(UnavailableError, match=r"journal\.db.*damaged"):
        save(saved_home, "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, saved_home.name]


def damage_page(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    content = bytearray(path.read_bytes())
    content[size : 2 * size] = random.Random(0).randbytes(size)
    path.write_bytes(content)


def test_a_home_is_never_replaced(saved_home: Path, tmp_path: Path) -> None:
    file = save(saved_home)
    (other := tmp_path / "other").mkdir()
    (other / "mine").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for target in (saved_home, other, other / "mine", tmp_path / "link"):
        with pytest.raises(UsageError, match="is not empty"):
            restore_home(file, target)
    assert [path.name for path in other.iterdir()] == ["mine"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    home = tmp_path_factory.mktemp("damage") / "home"
    (home / "environments").mkdir(parents=True)
    (home / "token").write_text("secret")
    with closing(Journal(home / "journal.db")):
        pass
    return save(home).read_bytes()


@given(data=st.data())
@hypothesis_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_a_damaged_backup_nothing_is_restored(archive: bytes, tmp_path: Path, data: st.DataObject) -> None:
    file, home = tmp_path / "damaged", tmp_path / "home"
    at = data.draw(st.integers(0, len(archive) - 1))
    if data.draw(st.booleans()):
        damaged = archive[:at]
    else:
        flipped = archive[at] ^ data.draw(st.integers(1, 255))
        damaged = archive[:at] + bytes([flipped]) + archive[at + 1 :]
    file.write_bytes(damaged)
    try:
        restore_home(file, home)
    except ScanflowError:
        assert not home.exists()
        assert [path.name for path in tmp_path.iterdir()] == ["damaged"]
    else:  # such as a time in the header of gzip: nothing that was saved differs
        shutil.rmtree(home)
        assert gzip.decompress(damaged) == gzip.decompress(archive)


Change = Callable[[dict[str, tuple[tarfile.TarInfo, bytes]]], object]


def pack(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], *, header: Header | None = None) -> Path:
    """Write an archive of these members, with a list that says the same of them."""
    entries = {}
    for member, content in members:
        kind = "link" if member.issym() else "folder" if member.isdir() else "file"
        digest = __import__("hashlib").sha256(content).hexdigest() if kind == "file" else ""
        target = member.linkname if kind == "link" else ""
        entries[member.name] = Entry(kind=kind, size=len(content), sha256=digest, target=target)  # type: ignore[arg-type]
    with gzip.open(path, "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        first = (header or Header(format=FORMAT, scanflow="0", journal=0, created=0.0)).model_dump_json().encode()
        last = Manifest(entries=entries).model_dump_json().encode()
        named = [(member.replace(name=f"{FILES}/{member.name}"), content) for member, content in members]
        for member, content in [(tarfile.TarInfo(HEADER), first), *named, (tarfile.TarInfo(MANIFEST), last)]:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def build_member(name: str, type: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = type, target
    return member


@pytest.mark.parametrize(
    "members",
    [
        [build_member("../outside")],
        [build_member("a/../../outside")],
        [build_member("/tmp/outside")],
        [build_member("a", tarfile.SYMTYPE, "../.."), build_member("a/outside")],
        [build_member("a", tarfile.SYMTYPE, "/etc")],
        [build_member("a", tarfile.FIFOTYPE)],
        [build_member("a", tarfile.CHRTYPE)],
        [build_member("a", tarfile.LNKTYPE, "/etc/passwd")],
        [build_member("a"), build_member("a")],
    ],
)
def test_an_archive_cannot_write_outside_its_home(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    (place := tmp_path / "deep" / "er").mkdir(parents=True)
    file = pack(place / "evil", [(member, b"evil" if member.isreg() else b"") for member in members])
    with pytest.raises(InvalidError, match="damaged"):
        restore_home(file, place / "home")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "deep",
        "deep/er",
        "deep/er/evil",
    ]


@pytest.mark.parametrize("what", ["its format is 2", "its journal has the version"])
def test_a_backup_of_a_newer_version_is_refused_by_name(tmp_path: Path, what: str) -> None:
    newer = FORMAT + 1 if "format" in what else FORMAT
    header = Header(format=newer, scanflow="9.1.0", journal=journal.VERSION + 1, created=0.0)
    file = pack(tmp_path / "newer", [(build_member("a"), b"1")], header=header)
    with pytest.raises(UsageError, match=rf"newer Scanflow \(9\.1\.0\): {what}.*Restore it with that version"):
        restore_home(file, tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_what_is_no_backup_is_said_to_be_none(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "other", "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        archive.addfile(build_member("a"))
    with pytest.raises(InvalidError, match="is no backup"):
        check_archive(tmp_path / "other")
    with pytest.raises(ScanflowError, match="There is no file"):
        check_archive(tmp_path / "none")


def test_a_restore_that_fails_in_the_middle_leaves_nothing(
    saved_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(saved_home)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "sync", fail)
        with pytest.raises(UnavailableError, match="disk is full"):
            restore_home(file, tmp_path / "now")
    (tmp_path / ".now.restoring" / "of a killed one").mkdir(parents=True)
    assert not (tmp_path / "now").exists()
    restore_home(file, tmp_path / "now")
    assert list_content(tmp_path / "now") == list_content(saved_home)
