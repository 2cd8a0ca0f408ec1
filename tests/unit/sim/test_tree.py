# SPDX-License-Identifier: Apache-2.0
"""Path look-up in a virtual tree."""

from __future__ import annotations

import errno

import pytest

from tests.unit.sim.hosts import refused
from vgpuctl.sim.tree import DirectoryNode, FileNode, LinkNode, Tree, fixed_directory, text_file


def test_directories_are_made_once_and_only_when_entered() -> None:
    made: list[str] = []

    def make() -> dict[str, FileNode]:
        made.append("x")
        return {"f": text_file(1)}

    tree = Tree(fixed_directory({"a": DirectoryNode(make), "b": DirectoryNode(make)}))
    tree.find("/a")
    assert made == []
    for _ in range(3):
        _, node = tree.find("/a/f")
        assert isinstance(node, FileNode)
        assert node.show is not None
        assert node.show() == "1\n"
    assert made == ["x"]


def test_links_in_the_middle_are_followed_and_the_last_one_on_request() -> None:
    tree = Tree(
        fixed_directory(
            {
                "a": fixed_directory({"b": fixed_directory({"f": text_file(1)})}),
                "l": LinkNode("/a"),
                "m": LinkNode("/l/b"),
            }
        )
    )
    assert tree.find("/l/b/f")[0] == "/a/b/f"
    assert tree.find("/m/f")[0] == "/a/b/f"
    assert tree.find("/m")[0] == "/a/b"
    assert isinstance(tree.find("/m", follow=False)[1], LinkNode)
    assert tree.find("/m/../b/./f")[0] == "/a/b/f"


@pytest.mark.parametrize(
    ("path", "number"),
    [("/none", errno.ENOENT), ("/f/x", errno.ENOTDIR), ("/f/..", errno.ENOTDIR), ("/dead/x", errno.ENOENT),
     ("/loop/x", errno.ELOOP)],
)  # fmt: skip
def test_what_is_not_there(path: str, number: int) -> None:
    tree = Tree(
        fixed_directory(
            {"f": text_file(1), "dead": LinkNode("/gone"), "loop": LinkNode("/pool"), "pool": LinkNode("/loop")}
        )
    )
    refused(number, lambda: tree.find(path))
