# SPDX-License-Identifier: Apache-2.0
"""The files that a domain's XML names as disks, with their backing images where libvirt writes the chain.

The live XML of a running domain has the whole chain (`<backingStore>`) and the target of a running copy (`<mirror>`);
the config XML usually has only the top image.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from vgpuctl.domain.domain_root import parse_root
from vgpuctl.value import Value

if TYPE_CHECKING:
    from lxml.etree import _Element

_BACKING_SOURCE = re.compile(r"<backingStore\s[^>]*>.*?<source\s(?:file|dev)='([^']*)'", re.DOTALL)


class DiskSources(Value):
    """The sources of one domain's disks: paths, (pool, volume) pairs, and (path, path of its backing image) pairs.

    `formats`: each path or (pool, volume) with the format that the domain's XML gives for it, where it has one.
    """

    files: tuple[str, ...] = ()
    volumes: tuple[tuple[str, str], ...] = ()
    backing_pairs: tuple[tuple[str, str], ...] = ()
    formats: tuple[tuple[str | tuple[str, str], str], ...] = ()


def parse_disk_sources(*documents: str | None) -> DiskSources:
    """Return the sources of a domain's disks, from its config XML and, when it runs, its live XML."""
    files: dict[str, None] = {}
    volumes: dict[tuple[str, str], None] = {}
    backing: dict[tuple[str, str], None] = {}
    formats: dict[tuple[str | tuple[str, str], str], None] = {}
    for text in documents:
        root = None if text is None else parse_root(text)
        for disk in () if root is None else root.findall("devices/disk"):
            for source in (disk.find("source"), disk.find("mirror/source")):
                path = _source_path(source)
                if path is not None:
                    files[path] = None
                if source is not None and source.get("pool") and source.get("volume"):
                    volumes[str(source.get("pool")), str(source.get("volume"))] = None
            source, driver = disk.find("source"), disk.find("driver")
            disk_format = None if driver is None else driver.get("type")
            if source is not None and disk_format:
                location = _source_path(source) or (str(source.get("pool")), str(source.get("volume")))
                formats[location, str(disk_format)] = None
            backing.update(dict.fromkeys(_backing_pairs(disk)))
    return DiskSources(tuple(files), tuple(volumes), tuple(backing), tuple(formats))


def has_unknown_backing_file(live_xml: str, known_paths: Collection[str]) -> bool:
    """Return whether a running domain's XML names an unknown backing image. Searches the text, which is fast."""
    return any(path not in known_paths for path in _BACKING_SOURCE.findall(live_xml))


def _backing_pairs(disk: _Element) -> list[tuple[str, str]]:
    """Return (file, its backing file) from the top down, as far as both are files of this host."""
    pairs = []
    above, below = disk, disk.find("backingStore")
    while below is not None:
        upper, lower = _source_path(above.find("source")), _source_path(below.find("source"))
        if upper is not None and lower is not None:
            pairs.append((upper, lower))
        above, below = below, below.find("backingStore")
    return pairs


def _source_path(source: _Element | None) -> str | None:
    path = None if source is None else source.get("file") or source.get("dev")
    return None if not path else str(path)
