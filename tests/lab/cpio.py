"""Writes initial ramdisks (cpio, newc): forty lines of code are cheaper than one more required program."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field


@dataclass
class Ramdisk:
    """The entries in the order in which they were added. A new entry also adds its missing parent directories."""

    _parts: list[bytes] = field(default_factory=list)
    _known: set[str] = field(default_factory=set)

    def add_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Add a regular file and its parent directories."""
        self._parents(path)
        self._entry(path, stat.S_IFREG | mode, content)

    def add_directory(self, path: str) -> None:
        """Add an empty directory and its parent directories."""
        self._parents(f"{path}/x")

    def add_node(self, path: str, major: int, minor: int) -> None:
        """Add a character device and its parent directories."""
        self._parents(path)
        self._entry(path, stat.S_IFCHR | 0o600, b"", (major, minor))

    def content(self) -> bytes:
        """Return the archive uncompressed: decompression on an emulated CPU costs more than the larger size does."""
        end = _header("TRAILER!!!", 0, 0, 0, (0, 0))
        archive = b"".join(self._parts) + end
        return archive + b"\0" * (-len(archive) % 512)

    def _parents(self, path: str) -> None:
        words = path.split("/")[:-1]
        for count in range(1, len(words) + 1):
            directory = "/".join(words[:count])
            if directory not in self._known:
                self._entry(directory, stat.S_IFDIR | 0o755, b"")

    def _entry(self, path: str, mode: int, content: bytes, device: tuple[int, int] = (0, 0)) -> None:
        self._known.add(path)
        number = len(self._known)
        self._parts.append(_header(path, number, mode, len(content), device))
        self._parts.append(content + b"\0" * (-len(content) % 4))


def _header(path: str, number: int, mode: int, size: int, device: tuple[int, int]) -> bytes:
    name = path.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, size, 0, 0, device[0], device[1], len(name), 0)
    head = b"070701" + b"".join(b"%08X" % value for value in fields) + name
    return head + b"\0" * (-len(head) % 4)
