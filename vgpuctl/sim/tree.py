# SPDX-License-Identifier: Apache-2.0
"""A virtual file tree, computed when it is looked at: directories, links and files with the kernel's errnos.

Nothing is written out: a directory makes its children when somebody enters it, and everything is thrown away
when the state changes, so what is listed is exactly what exists now.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vgpuctl.sim.journal import Record

_LONGEST = 40


@dataclass(slots=True, eq=False)
class File:
    """A file: `show` reads it, `store` returns the records that a write makes. None: not allowed."""

    show: Callable[[], str] | None = None
    store: Callable[[str], list[Record]] | None = None


@dataclass(slots=True, eq=False)
class Link:
    """A symbolic link to an absolute path; read back, it is relative to where it stands, as the kernel's."""

    target: str


@dataclass(slots=True, eq=False)
class Dir:
    """A directory whose children are made when it is first looked at.

    `pick` finds one child by name without making the others: a host may have a thousand functions.
    """

    make: Callable[[], Mapping[str, Node]]
    pick: Callable[[str], Node | None] | None = None
    made: Mapping[str, Node] | None = None

    def child(self, name: str) -> Node | None:
        """Return one child, or None."""
        if self.made is None and self.pick is not None:
            return self.pick(name)
        return self.children().get(name)

    def children(self) -> Mapping[str, Node]:
        """Return the children by name."""
        if self.made is None:
            self.made = self.make()
        return self.made


Node = File | Link | Dir


def fixed(children: Mapping[str, Node]) -> Dir:
    """Return a directory with these children."""
    return Dir(lambda: children)


def text(value: object) -> File:
    """Return a read-only file that holds one line."""
    return File(show=lambda: f"{value}\n")


def fail(number: int, path: str) -> OSError:
    """Return an OSError as the kernel would raise it."""
    return OSError(number, os.strerror(number), path)


class Tree:
    """Path look-up below a root directory. Valid for one state of the host."""

    def __init__(self, root: Dir) -> None:
        self._root = root
        self._known: dict[str, tuple[str, Node]] = {}

    def find(self, path: str, *, follow: bool = True) -> tuple[str, Node]:
        """Return the canonical path and the node.

        Raises:
            OSError: ENOENT, ENOTDIR or ELOOP.
        """
        odd = ("//" in path or "/." in path) and ".." not in path
        folder, _, name = (posixpath.normpath(path) if odd else path.rstrip("/")).rpartition("/")
        if not name:
            return "/", self._root
        where, parent = self._folder(folder, path, 0)
        return self._step(where, parent, name, path, 0, follow=follow)

    def _folder(self, folder: str, path: str, depth: int) -> tuple[str, Node]:
        known = self._known.get(folder)
        if known is not None:
            return known
        if folder in ("", "/"):
            return "/", self._root
        above, name = posixpath.split(folder)
        where, parent = self._folder(above, path, depth)
        found = self._step(where, parent, name, path, depth, follow=True)
        self._known[folder] = found
        return found

    def _step(self, where: str, parent: Node, name: str, path: str, depth: int, *, follow: bool) -> tuple[str, Node]:
        if not isinstance(parent, Dir):
            raise fail(errno.ENOTDIR, path)
        if name == "..":
            return self._folder(posixpath.dirname(where), path, depth)
        if name in (".", ""):
            return where, parent
        node = parent.child(name)
        if node is None:
            raise fail(errno.ENOENT, path)
        if isinstance(node, Link) and follow:
            if depth > _LONGEST:
                raise fail(errno.ELOOP, path)
            return self._folder(node.target, path, depth + 1)
        return f"{where}/{name}" if where != "/" else f"/{name}", node
