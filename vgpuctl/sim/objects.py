# SPDX-License-Identifier: Apache-2.0
"""The objects that a simulated host has: mdevs, domains, pools, files, and writes that hang in its kernel."""

from __future__ import annotations

from dataclasses import dataclass

from vgpuctl.sim.journal import JournalRecord


@dataclass(slots=True)
class SimMdev:
    """An mdev that exists."""

    uuid: str
    parent: str
    type_key: str
    group: int
    params: str = ""


@dataclass(slots=True)
class SimDomain:
    """A domain. One that is not persistent disappears when it stops."""

    uuid: str
    name: str
    xml: str
    persistent: bool = True


@dataclass(slots=True)
class RunningDomain:
    """A running domain: its process, its XML at the start, its devices, and the drivers that they had before."""

    uuid: str
    name: str
    pid: int
    xml: str
    carriers: tuple[str, ...]
    previous_drivers: dict[str, str | None]


@dataclass(slots=True)
class SimPool:
    """A storage pool."""

    name: str
    path: str
    active: bool
    kind: str = "dir"
    capacity: int | None = None
    used: int = 0


@dataclass(slots=True)
class SimFile:
    """A disk image on the simulated file system. `digest`: the SHA-256 of its whole content, if vgpuctl wrote it.

    `link`: the file that this path is only another name of.
    """

    path: str
    size: int
    format: str
    base: str | None
    allocation: int
    firmware: str = "none"
    problem: str | None = None
    digest: str | None = None
    link: str | None = None


@dataclass(slots=True)
class BlockedWrite:
    """A write that hangs in the kernel until nobody uses `carriers`."""

    pid: int
    gpu: str
    path: str
    text: str
    carriers: tuple[str, ...]
    records: list[JournalRecord]
