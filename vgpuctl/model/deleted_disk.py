# SPDX-License-Identifier: Apache-2.0
"""A disk of a deleted VM that waits in the bin of its storage pool.

Its name in the bin is its whole record: it moves there in one call, so no crash can part the two. The characters of
the name are those that file names, LVM's tags and a shell take as they are.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime

from vgpuctl.value import Value

BIN_FOLDER = ".vgpuctl-deleted"
"""The bin of a directory pool, in its directory."""
LOGICAL_PREFIX = "vgpuctl-deleted-"
"""A volume group has no folders: there the name is this with the entry's id, and a tag has the entry's name."""
LOGICAL_NAME = rf"{LOGICAL_PREFIX}[0-9a-f]{{12}}"
TAG_PREFIX = "vgpuctl-deleted="
BINNED_KINDS = ("dir", "fs", "netfs", "logical")
"""The kinds of storage pools whose volumes can be renamed."""
MAX_KEEP_DAYS = 366
_DAY_SECONDS = 86_400
_MAX_NAME_BYTES = 255
_TIME = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(
    r"([0-9]{8}T[0-9]{6}Z)\+([0-9]{1,3})d\+([^+]+)\+([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"\+([^+]*)\+([0-9]{1,18})\+([^+]+)",
    re.ASCII,
)


class BinEntry(Value):
    """What is known of a disk in the bin. `deleted_at`: seconds since the epoch. `volume`: its former name."""

    deleted_at: int
    keep_days: int
    account: str
    vm_uuid: str
    vm: str
    volume: str
    capacity_bytes: int

    @property
    def name(self) -> str:
        """The name in the bin.

        Raises:
            ValueError: it would be longer than the name of a file can be.
        """
        vm = "" if _vm_of(self.volume, self.vm_uuid) == self.vm else _encode(self.vm)
        time = datetime.fromtimestamp(self.deleted_at, UTC).strftime(_TIME)
        parts = (time, f"{self.keep_days}d", _encode(self.account), self.vm_uuid, vm, str(self.capacity_bytes))
        name = "+".join((*parts, _encode(self.volume)))
        if len(name) > _MAX_NAME_BYTES:
            raise ValueError(f"the name {name} is longer than {_MAX_NAME_BYTES} characters")
        return name

    @property
    def id(self) -> str:
        """A short name for people and programs."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:12]

    @property
    def logical_name(self) -> str:
        """The name of its logical volume in the bin."""
        return f"{LOGICAL_PREFIX}{self.id}"

    @property
    def purge_at(self) -> int:
        """From when on it may be deleted for good."""
        return self.deleted_at + self.keep_days * _DAY_SECONDS


class BinnedVolume(Value):
    """What is in the bin of a pool. `entry` None: vgpuctl did not put it there so, and `problem` says what it is."""

    pool: str
    path: str
    entry: BinEntry | None
    allocated_bytes: int | None = None
    problem: str | None = None


def parse_bin_entry(name: str) -> BinEntry | None:
    """Return the entry with this name; None if it is not exactly what vgpuctl writes."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    time, days, account, uuid, vm, capacity, volume = match.groups()
    try:
        deleted_at = int(datetime.strptime(time, _TIME).replace(tzinfo=UTC).timestamp())
        former = _decode(volume)
        whose = _decode(vm) if vm else _vm_of(former, uuid)
        entry = BinEntry(deleted_at, int(days), _decode(account), uuid, whose, former, int(capacity))
        is_exact = entry.name == name and 1 <= entry.keep_days <= MAX_KEEP_DAYS
    except ValueError:
        return None
    return entry if is_exact and "/" not in former and former not in (".", "..") else None


def _vm_of(volume: str, uuid: str) -> str:
    """Return the VM's name that is in the name of its disk, as vgpuctl names disks; the empty string if none is."""
    name, separator, _ = volume.rpartition(f"-{uuid[:8]}")
    return name if separator else ""


def _encode(text: str) -> str:
    """Return a text in the characters that are allowed: others are =XX, in hexadecimal."""
    return "".join(
        character
        if re.fullmatch(r"[A-Za-z0-9_.-]", character, re.ASCII)
        else "".join(f"={byte:02X}" for byte in character.encode())
        for character in text
    )


def _decode(text: str) -> str:
    if re.search("=(?![0-9A-F]{2})", text):
        raise ValueError(text)
    plain = text.encode("ascii")
    return re.sub(rb"=([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), plain).decode()
