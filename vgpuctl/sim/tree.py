# SPDX-License-Identifier: Apache-2.0
"""A virtual file tree, computed on access: directories, links and files with the kernel's errnos.

Nothing is written to disk. A directory builds its children at the first access, and the whole tree is discarded
when the state changes, so a listing shows exactly what exists now.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vgpuctl.sim.journal import JournalRecord

_MAX_LINKS = 40


@dataclass(slots=True, eq=False)
class FileNode:
    """A file. `show` reads it, `store` returns the records of a write. None means not allowed."""

    show: Callable[[], str] | None = None
    store: Callable[[str], list[JournalRecord]] | None = None


@dataclass(slots=True, eq=False)
class LinkNode:
    """A symbolic link to an absolute path. Reading it gives a relative path, as with the kernel's links."""

    target: str


@dataclass(slots=True, eq=False)
class DirectoryNode:
    """A directory that builds its children at the first access.

    `find_child` builds one child by name without the others: a host may have a thousand functions.
    """

    build: Callable[[], Mapping[str, Node]]
    find_child: Callable[[str], Node | None] | None = None
    cached: Mapping[str, Node] | None = None

    def child(self, name: str) -> Node | None:
        """Return one child, or None."""
        if self.cached is None and self.find_child is not None:
            return self.find_child(name)
        return self.children().get(name)

    def children(self) -> Mapping[str, Node]:
        """Return the children by name."""
        if self.cached is None:
            self.cached = self.build()
        return self.cached


Node = FileNode | LinkNode | DirectoryNode


def fixed_directory(children: Mapping[str, Node]) -> DirectoryNode:
    """Return a directory with these children."""
    return DirectoryNode(lambda: children)


def text_file(value: object) -> FileNode:
    """Return a read-only file that holds one line."""
    return FileNode(show=lambda: f"{value}\n")


def kernel_error(number: int, path: str) -> OSError:
    """Return an OSError as the kernel would raise it."""
    return OSError(number, os.strerror(number), path)


class Tree:
    """Path lookup below a root directory. It is valid for one state of the host."""

    def __init__(self, root: DirectoryNode) -> None:
        self._root = root
        self._directories: dict[str, tuple[str, Node]] = {}

    def find(self, path: str, *, follow: bool = True) -> tuple[str, Node]:
        """Return the canonical path and the node.

        Raises:
            OSError: ENOENT, ENOTDIR or ELOOP.
        """
        needs_normalising = ("//" in path or "/." in path) and ".." not in path
        folder, _, name = (posixpath.normpath(path) if needs_normalising else path.rstrip("/")).rpartition("/")
        if not name:
            return "/", self._root
        parent_path, parent = self._find_directory(folder, path, 0)
        return self._resolve(parent_path, parent, name, path, 0, follow=follow)

    def _find_directory(self, folder: str, path: str, depth: int) -> tuple[str, Node]:
        cached = self._directories.get(folder)
        if cached is not None:
            return cached
        if folder in ("", "/"):
            return "/", self._root
        parent_folder, name = posixpath.split(folder)
        parent_path, parent = self._find_directory(parent_folder, path, depth)
        result = self._resolve(parent_path, parent, name, path, depth, follow=True)
        self._directories[folder] = result
        return result

    def _resolve(
        self, parent_path: str, parent: Node, name: str, path: str, depth: int, *, follow: bool
    ) -> tuple[str, Node]:
        if not isinstance(parent, DirectoryNode):
            raise kernel_error(errno.ENOTDIR, path)
        if name == "..":
            return self._find_directory(posixpath.dirname(parent_path), path, depth)
        if name in (".", ""):
            return parent_path, parent
        node = parent.child(name)
        if node is None:
            raise kernel_error(errno.ENOENT, path)
        if isinstance(node, LinkNode) and follow:
            if depth > _MAX_LINKS:
                raise kernel_error(errno.ELOOP, path)
            return self._find_directory(node.target, path, depth + 1)
        return f"{parent_path}/{name}" if parent_path != "/" else f"/{name}", node
