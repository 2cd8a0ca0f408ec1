# SPDX-License-Identifier: Apache-2.0
"""What a guest with Windows needs to join a domain without talking to it: the blob of an offline domain join."""

from __future__ import annotations

from enum import StrEnum

from vgpuctl.errors import VgpuctlError
from vgpuctl.value import Value

DOMAIN_JOIN_DIRECTORY = "/etc/vgpuctl/domain-joins"


class JoinSource(StrEnum):
    """Where the blobs of a domain come from: a folder with one for each computer, or a program that prints one."""

    FOLDER = "folder"
    PROGRAM = "program"


class DomainJoin(Value):
    """How a guest joins a domain: a secret, of which only the name is ever shown.

    `blob`: base64, as `djoin /provision` makes it; empty until it is needed, because each counts for one setup of one
    computer. `problem`: why it cannot be used now; a command that gives it to no guest goes on.
    """

    name: str
    blob: str = ""
    problem: VgpuctlError | None = None

    def __repr__(self) -> str:
        return f"DomainJoin(name={self.name!r})"


class NotRootsAlone(ValueError):
    """Others than root can change a file or folder, or read it. `change`: what of its mode chmod(1) must take away."""

    def __init__(self, path: str, change: str) -> None:
        super().__init__(f"{path} is not root's alone")
        self.path, self.change = path, change


class BlobUse(Value):
    """For what a blob is used: the domain's name, the computer, and the setup of its guest.

    `setup`: the same for each try of one setup, and another one for every other setup; letters and digits.
    `source`: where the blob comes from.
    """

    name: str
    computer: str
    setup: str
    source: JoinSource = JoinSource.FOLDER
