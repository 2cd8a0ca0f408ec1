# SPDX-License-Identifier: Apache-2.0
"""The files that a domain's XML names as disks, with the images below them where libvirt writes the chain.

The live XML of a running domain has the whole chain (`<backingStore>`) and the target of a copy under way
(`<mirror>`); the config XML mostly has the top alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from vgpuctl.value import Value

if TYPE_CHECKING:
    from lxml.etree import _Element


_BELOW = re.compile(r"<backingStore\s[^>]*>.*?<source\s(?:file|dev)='([^']*)'", re.DOTALL)


class Sources(Value):
    """What one domain's disks are: paths, (pool, volume) pairs, and (path, path of the image below it) pairs.

    `formats`: with each path or (pool, volume) the format in which the domain has it, where it says so.
    """

    files: tuple[str, ...] = ()
    volumes: tuple[tuple[str, str], ...] = ()
    backing: tuple[tuple[str, str], ...] = ()
    formats: tuple[tuple[str | tuple[str, str], str], ...] = ()


def sources_of(*documents: str | None) -> Sources:
    """Return what the disks of a domain are, by its config XML and, when it runs, its live XML."""
    from vgpuctl.domain.parse import root_of  # with lxml

    files: dict[str, None] = {}
    volumes: dict[tuple[str, str], None] = {}
    backing: dict[tuple[str, str], None] = {}
    formats: dict[tuple[str | tuple[str, str], str], None] = {}
    for text in documents:
        root = None if text is None else root_of(text)
        for disk in () if root is None else root.findall("devices/disk"):
            for source in (disk.find("source"), disk.find("mirror/source")):
                path = _path(source)
                if path is not None:
                    files[path] = None
                if source is not None and source.get("pool") and source.get("volume"):
                    volumes[str(source.get("pool")), str(source.get("volume"))] = None
            source, driver = disk.find("source"), disk.find("driver")
            form = None if driver is None else driver.get("type")
            if source is not None and form:
                where = _path(source) or (str(source.get("pool")), str(source.get("volume")))
                formats[where, str(form)] = None
            backing.update(dict.fromkeys(_chain(disk)))
    return Sources(tuple(files), tuple(volumes), tuple(backing), tuple(formats))


def names_more(live_xml: str, known: Collection[str]) -> bool:
    """Say whether a running domain's XML names an image below a disk that is not known. Reads the text: it is quick."""
    return any(path not in known for path in _BELOW.findall(live_xml))


def _chain(disk: _Element) -> list[tuple[str, str]]:
    """Return (file, file below it) from the top down, as far as both are files of this host."""
    pairs = []
    above, below = disk, disk.find("backingStore")
    while below is not None:
        upper, lower = _path(above.find("source")), _path(below.find("source"))
        if upper is not None and lower is not None:
            pairs.append((upper, lower))
        above, below = below, below.find("backingStore")
    return pairs


def _path(source: _Element | None) -> str | None:
    found = None if source is None else source.get("file") or source.get("dev")
    return None if not found else str(found)
