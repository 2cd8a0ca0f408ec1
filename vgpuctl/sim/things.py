# SPDX-License-Identifier: Apache-2.0
"""The things that a simulated host has now: mdevs, domains, pools, files, and writes that wait in its kernel."""

from __future__ import annotations

from dataclasses import dataclass

from vgpuctl.sim.journal import Record


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
    """A domain; one that is not persistent is gone when it stops."""

    uuid: str
    name: str
    xml: str
    persistent: bool = True


@dataclass(slots=True)
class Running:
    """A running domain: its process, its XML at the start, what it holds, and which drivers it took."""

    uuid: str
    name: str
    pid: int
    xml: str
    carriers: tuple[str, ...]
    taken: dict[str, str | None]


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
    """A disk image on the simulated file system. `digest`: the SHA-256 of what was written into it as a whole.

    `link`: it is another name of that file and no file of its own.
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
class Parked:
    """A write that waits in the kernel until nobody uses `carriers`."""

    pid: int
    gpu: str
    path: str
    text: str
    carriers: tuple[str, ...]
    records: list[Record]
