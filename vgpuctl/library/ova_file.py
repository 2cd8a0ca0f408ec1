# SPDX-License-Identifier: Apache-2.0
"""Read the OVF in an OVA, and the first bytes of its disks, without extracting anything.

An OVA is a tar of plain files without folders of consequence (DMTF DSP0243). One with a link, a device, or a name that
leads out of the folder is refused as a whole. So is one that tar could read otherwise than this module: with two
members of one name, sparse files, extended headers that are damaged or say one thing twice, or global ones with a path
or size. Python's tarfile reads extended headers of any size into memory, so the headers are read here, each up to a
limit. Source of the format: POSIX.1-2008, pax interchange format, and GNU tar's manual for long names, large sizes and
sparse files.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

from vgpuctl.errors import InvalidInput
from vgpuctl.regular_file import MAX_BYTES, open_regular_file
from vgpuctl.value import Value

_BLOCK = 512
_MAX_OVA_BYTES = 64 << 40
_MAX_MEMBERS = 1000
_MAX_EXTENDED_BYTES = 8 << 10
_REGULAR, _DIRECTORY = (b"0", b"\0", b"7"), b"5"
_LONG_NAME, _EXTENDED, _GLOBAL = b"L", b"x", b"g"
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^\s=\0]+)=")
_NOT_GLOBAL = {"path", "size", "linkpath"}
_KINDS = {
    b"S": "a sparse file",
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
}


class OvaMember(Value):
    """A file in an OVA. `offset`: where its content begins."""

    name: str
    size: int
    offset: int


class OvaContent(Value):
    """The text of the OVF, its name, and what is wrong with each of the disks, by name; None: nothing."""

    ovf_name: str
    ovf: bytes
    disks: Mapping[str, str | None]


def is_ova(path: str) -> bool:
    """Return whether a path is a regular file that begins as a tar does."""
    try:
        with open_regular_file(path, _MAX_OVA_BYTES) as file:
            return file.read(_BLOCK)[257:262] == b"ustar"
    except OSError:
        return False


def read_ova(path: str, head_bytes: int, find_problem: Callable[[bytes], str | None]) -> OvaContent:
    """Read the OVF of an OVA, and check its disks: `find_problem` gets the first `head_bytes` of each.

    Raises:
        InvalidInput: it is damaged, has a member that is not allowed, or not exactly one OVF.
        OSError: it cannot be read.
    """
    with open_regular_file(path, _MAX_OVA_BYTES) as file:
        members = list(_read_members(path, file))
        descriptions = [member for member in members if member.name.lower().endswith(".ovf")]
        if len(descriptions) != 1:
            raise InvalidInput(f"{path}: this OVA has {len(descriptions)} .ovf files, and must have one", path=path)
        ovf = descriptions[0]
        if ovf.size > MAX_BYTES:
            raise InvalidInput(f"{path}: {ovf.name!a} in it is larger than {MAX_BYTES >> 10} KiB", path=path)
        text = _read_at(file, ovf.offset, ovf.size)
        disks = {
            member.name: find_problem(_read_at(file, member.offset, min(member.size, head_bytes)))
            for member in members
            if member is not ovf
        }
    return OvaContent(ovf.name, text, disks)


def _read_members(path: str, file: BinaryIO) -> Iterator[OvaMember]:
    """Yield the files; check all members."""
    offset = 0
    extended: dict[str, str] = {}
    names: set[str] = set()
    for _ in range(_MAX_MEMBERS):
        header = _read_at(file, offset, _BLOCK)
        if not header.strip(b"\0"):
            return
        kind, data = header[156:157], offset + _BLOCK
        is_extended = kind in (_LONG_NAME, _EXTENDED, _GLOBAL)
        size = _member_size(path, file, header, data, None if is_extended else extended.get("size"))
        if is_extended:
            if size > _MAX_EXTENDED_BYTES:
                problem = f"an extended header of {size} bytes, which no OVA needs"
                raise InvalidInput(f"{path}: this OVA has {problem}", path=path)
            added = _read_extended(path, kind, _read_at(file, data, size))
            twice = next(iter(extended.keys() & added.keys()), None)
            if twice is not None:
                raise InvalidInput(f"{path}: this OVA has {twice!a} twice in the headers of a member", path=path)
            extended |= added
        else:
            name = extended.get("path") or _header_name(header)
            _check_member(path, name, kind, size)
            if posixpath.normpath(name) in names:
                problem = f"two members named {posixpath.normpath(name)!a}: tar may take the other one"
                raise InvalidInput(f"{path}: this OVA has {problem}", path=path, member=name)
            names.add(posixpath.normpath(name))
            if kind in _REGULAR:
                yield OvaMember(name, size, data)
            extended = {}
        offset = data + -(-size // _BLOCK) * _BLOCK
    raise InvalidInput(f"{path}: this OVA has more than {_MAX_MEMBERS} members", path=path)


def _read_extended(path: str, kind: bytes, text: bytes) -> dict[str, str]:
    """Return what an extended header says about the next member.

    Raises:
        InvalidInput: it is damaged, describes a sparse file, or says for all members what only one can have.
    """
    if kind == _LONG_NAME:
        return {"path": _decode(text)}
    records: dict[str, str] = {}
    for key, value in _parse_records(text):
        if key is None:
            raise InvalidInput(f"{path}: this OVA is damaged: an extended header is not in records", path=path)
        if key in records:
            raise InvalidInput(f"{path}: this OVA has {key!a} twice in the headers of a member", path=path)
        if key.startswith("GNU.sparse."):
            raise InvalidInput(f"{path}: this OVA has a sparse file ({key!a}), which no OVA needs", path=path)
        if kind == _GLOBAL and key in _NOT_GLOBAL:
            raise InvalidInput(f"{path}: this OVA has a global extended header with {key!a}", path=path)
        if key == "path" and not value:
            raise InvalidInput(f"{path}: this OVA has an empty 'path' in an extended header", path=path)
        records[key] = value
    return records if kind == _EXTENDED else {}


def _member_size(path: str, file: BinaryIO, header: bytes, data: int, extended_size: str | None) -> int:
    """Return the size of a member whose content begins at `data`; an `extended_size` replaces the header's.

    Raises:
        InvalidInput: the header is damaged, or the file ends within the member.
    """
    if len(header) < _BLOCK or not _has_checksum(header):
        raise InvalidInput(f"{path}: this OVA is damaged: no tar header at byte {data - _BLOCK}", path=path)
    size: int | None
    if extended_size is None:
        size = _parse_number(header[124:136])
    elif re.fullmatch("[0-9]{1,18}", extended_size, re.ASCII):
        size = int(extended_size)
    else:
        raise InvalidInput(f"{path}: this OVA is damaged: a member's size is {extended_size[:60]!a}", path=path)
    if size is None or data + size > file.seek(0, os.SEEK_END):
        raise InvalidInput(f"{path}: this OVA is damaged: it ends within the member at byte {data - _BLOCK}", path=path)
    return size


def _check_member(path: str, name: str, kind: bytes, size: int) -> None:
    if kind not in _REGULAR and kind != _DIRECTORY:
        what = _KINDS.get(kind, "of a kind that no OVA has")
        raise InvalidInput(f"{path}: {name!a} in this OVA is {what}: only files are allowed", path=path, member=name)
    if kind == _DIRECTORY and size:
        raise InvalidInput(f"{path}: the folder {name!a} in this OVA has a content", path=path, member=name)
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\\" in name or not name.isprintable():
        raise InvalidInput(f"{path}: {name!a} in this OVA would leave its folder", path=path, member=name)


def _header_name(header: bytes) -> str:
    name, prefix = _decode(header[:100]), _decode(header[345:500])
    return posixpath.join(prefix, name) if prefix and header[257:263] == b"ustar\0" else name


def _has_checksum(header: bytes) -> bool:
    """Return whether the sum of the header's bytes is the one that it has, where its own field counts as spaces."""
    return _parse_number(header[148:156]) == sum(header[:148]) + 8 * 32 + sum(header[156:])


def _parse_number(field: bytes) -> int | None:
    """Return a number in octal digits, or in GNU's base 256 if the first bit is set; None for anything else."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    text = field.strip(b" \0")
    return int(text, 8) if text and not text.strip(b"01234567") else (0 if not text else None)


def _parse_records(text: bytes) -> Iterator[tuple[str | None, str]]:
    """Yield the records `LENGTH KEY=VALUE` of an extended header; a last one without key if the rest is no record."""
    while text:
        match = _RECORD.match(text)
        length = 0 if match is None else int(match[1])
        if match is None or not match.end() < length <= len(text) or text[length - 1 : length] != b"\n":
            yield None, ""
            return
        yield _decode(match[2]), _decode(text[match.end() : length - 1])
        text = text[length:]


def _decode(text: bytes) -> str:
    return text.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
