"""The shared libraries of a compiled program, read from its ELF headers: a few kilobytes of the file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Final

_MAGIC: Final = b"\x7fELF"
_LOAD, _DYNAMIC = 1, 2  # types of segments
_NEEDED, _NAMES, _NAMES_SIZE = 1, 5, 10  # tags of the dynamic segment: DT_NEEDED, DT_STRTAB, DT_STRSZ
_MAX_BYTES: Final = 1 << 24  # of a table; a damaged header may have any number
_MAX_OFFSET: Final = 1 << 40


def read_needed_libraries(program: Path) -> tuple[str, ...]:
    """Return the names of the libraries that the dynamic linker loads for a program.

    None for a script, for a program that is linked statically, and for a file that is damaged.
    """
    with program.open("rb") as file:
        head = file.read(64)
        if head[:4] != _MAGIC:
            return ()
        try:
            return _read_needed(file, head)
        except (struct.error, ValueError, LookupError):
            return ()


def _read_needed(file: BinaryIO, head: bytes) -> tuple[str, ...]:
    wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
    start, size, count = struct.unpack_from(f"{order}{'32xQ14xHH' if wide else '28xI10xHH'}", head)
    # Each segment's type, offset in the file, address in memory and length.
    segment = f"{order}{'I4xQQ8xQ' if wide else 'III4xI'}"
    segments = [struct.unpack_from(segment, _read_part(file, start + size * index, size)) for index in range(count)]
    dynamic = [(offset, length) for kind, offset, _, length in segments if kind == _DYNAMIC]
    if not dynamic:
        return ()
    table = _read_part(file, *dynamic[0])
    entry = struct.Struct(f"{order}{'qQ' if wide else 'iI'}")
    entries = list(entry.iter_unpack(table[: len(table) // entry.size * entry.size]))
    tags = dict(entries)
    names = _read_part(file, _get_offset(tags[_NAMES], segments), tags[_NAMES_SIZE]) if _NAMES in tags else b""
    return tuple(names[at:].split(b"\0", 1)[0].decode("ascii", "replace") for tag, at in entries if tag == _NEEDED)


def _get_offset(address: int, segments: list[tuple[int, ...]]) -> int:
    for kind, offset, start, length in segments:
        if kind == _LOAD and start <= address < start + length:
            return offset + address - start
    raise ValueError(address)


def _read_part(file: BinaryIO, offset: int, length: int) -> bytes:
    if length > _MAX_BYTES or offset > _MAX_OFFSET:
        raise ValueError(offset, length)
    file.seek(offset)
    return file.read(length)
