"""Which shared libraries a compiled program is linked with, read from its headers: a few kilobytes of the file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Final

_MAGIC: Final = b"\x7fELF"
_LOAD, _DYNAMIC = 1, 2  # types of segments
_NEEDED, _NAMES, _NAMES_SIZE = 1, 5, 10  # tags of what the dynamic segment has
_MAX_BYTES: Final = 1 << 24  # of a table; a damaged header may ask for more than there is,
_MAX_OFFSET: Final = 1 << 40  # and beyond what a file can have


def needed_libraries(program: Path) -> tuple[str, ...]:
    """Return the names of the libraries that the dynamic linker loads for a program.

    None for a script, for a program that is linked statically, and for a file that is damaged.
    """
    with program.open("rb") as file:
        head = file.read(64)
        if head[:4] != _MAGIC:
            return ()
        try:
            return _needed(file, head)
        except (struct.error, ValueError, LookupError):
            return ()


def _needed(file: BinaryIO, head: bytes) -> tuple[str, ...]:
    wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
    start, size, count = struct.unpack_from(f"{order}{'32xQ14xHH' if wide else '28xI10xHH'}", head)
    # Of each segment its type, and where it is: in the file, in memory, how long.
    segment = f"{order}{'I4xQQ8xQ' if wide else 'III4xI'}"
    segments = [struct.unpack_from(segment, _part(file, start + size * one, size)) for one in range(count)]
    found = [(offset, length) for kind, offset, _, length in segments if kind == _DYNAMIC]
    if not found:
        return ()
    table = _part(file, *found[0])
    entry = struct.Struct(f"{order}{'qQ' if wide else 'iI'}")
    entries = list(entry.iter_unpack(table[: len(table) // entry.size * entry.size]))
    where = dict(entries)
    names = _part(file, _in_file(where[_NAMES], segments), where[_NAMES_SIZE]) if _NAMES in where else b""
    return tuple(names[at:].split(b"\0", 1)[0].decode("ascii", "replace") for tag, at in entries if tag == _NEEDED)


def _in_file(address: int, segments: list[tuple[int, ...]]) -> int:
    for kind, offset, start, length in segments:
        if kind == _LOAD and start <= address < start + length:
            return offset + address - start
    raise ValueError(address)


def _part(file: BinaryIO, offset: int, length: int) -> bytes:
    if length > _MAX_BYTES or offset > _MAX_OFFSET:
        raise ValueError(offset, length)
    file.seek(offset)
    return file.read(length)
