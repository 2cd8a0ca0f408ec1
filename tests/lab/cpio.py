"""Writes initial ramdisks (cpio, newc): a format of forty lines is cheaper than one more program to need."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field


@dataclass
class Ramdisk:
    """Entries in the order they were added; directories are added with what they hold."""

    _parts: list[bytes] = field(default_factory=list)
    _known: set[str] = field(default_factory=set)

    def add_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """A regular file, and the directories above it."""
        self._parents(path)
        self._entry(path, stat.S_IFREG | mode, content)

    def add_directory(self, path: str) -> None:
        """An empty directory, and those above it."""
        self._parents(f"{path}/x")

    def add_node(self, path: str, major: int, minor: int) -> None:
        """A character device."""
        self._parents(path)
        self._entry(path, stat.S_IFCHR | 0o600, b"", (major, minor))

    def content(self) -> bytes:
        """The archive, not compressed: reading it back costs an emulated CPU more than its size costs us."""
        end = _header("TRAILER!!!", 0, 0, 0, (0, 0))
        whole = b"".join(self._parts) + end
        return whole + b"\0" * (-len(whole) % 512)

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
