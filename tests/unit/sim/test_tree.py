# SPDX-License-Identifier: Apache-2.0
"""Path look-up in a virtual tree."""

from __future__ import annotations

import errno

import pytest

from tests.unit.sim.hosts import refused
from vgpuctl.sim.tree import Dir, File, Link, Tree, fixed, text


def test_directories_are_made_once_and_only_when_entered() -> None:
    made: list[str] = []

    def make() -> dict[str, File]:
        made.append("x")
        return {"f": text(1)}

    tree = Tree(fixed({"a": Dir(make), "b": Dir(make)}))
    tree.find("/a")
    assert made == []
    for _ in range(3):
        _, node = tree.find("/a/f")
        assert isinstance(node, File)
        assert node.show is not None
        assert node.show() == "1\n"
    assert made == ["x"]


def test_links_in_the_middle_are_followed_and_the_last_one_on_request() -> None:
    tree = Tree(fixed({"a": fixed({"b": fixed({"f": text(1)})}), "l": Link("/a"), "m": Link("/l/b")}))
    assert tree.find("/l/b/f")[0] == "/a/b/f"
    assert tree.find("/m/f")[0] == "/a/b/f"
    assert tree.find("/m")[0] == "/a/b"
    assert isinstance(tree.find("/m", follow=False)[1], Link)
    assert tree.find("/m/../b/./f")[0] == "/a/b/f"


@pytest.mark.parametrize(
    ("path", "number"),
    [("/none", errno.ENOENT), ("/f/x", errno.ENOTDIR), ("/f/..", errno.ENOTDIR), ("/dead/x", errno.ENOENT),
     ("/loop/x", errno.ELOOP)],
)  # fmt: skip
def test_what_is_not_there(path: str, number: int) -> None:
    tree = Tree(fixed({"f": text(1), "dead": Link("/gone"), "loop": Link("/pool"), "pool": Link("/loop")}))
    refused(number, lambda: tree.find(path))
