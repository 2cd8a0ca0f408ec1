# SPDX-License-Identifier: Apache-2.0
"""The tutorial with an LDAP server: each of its commands runs as an ordinary user, with a real slapd."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.test_documents import LDAP_TUTORIAL, Walk, blocks, compare_transcripts, without_transcripts

LOOPBACK = "ip link set lo up && echo ready && read"
NOBODY = (
    *("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),  # the checkout may be below /root
)


@contextmanager
def _ordinary_user(place: Path) -> Iterator[list[str]]:
    """Yield the words before a command of a user who owns `place`, in a network where every port is free."""
    subprocess.run(["chown", "nobody:nogroup", place], check=True)
    holder = ["unshare", "--net", "bash", "-c", LOOPBACK]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as network:
        assert network.stdout is not None
        assert network.stdout.readline() == "ready\n"
        yield ["nsenter", "--target", str(network.pid), "--net", *NOBODY]


@pytest.mark.slow
def test_every_command_of_the_tutorial_runs(tmp_path: Path) -> None:
    text = LDAP_TUTORIAL.read_text(encoding="utf-8")
    new = text.splitlines()
    with _ordinary_user(tmp_path) as prefix:
        walk = Walk(tmp_path, prefix)
        assert walk.run("id -un") == "nobody\n"
        try:
            for block in without_transcripts(list(blocks(text)), new, walk):
                if block.language == "sh":
                    walk.run("\n".join(block.lines))
        finally:
            walk.end_what_runs()
    compare_transcripts(LDAP_TUTORIAL, new)
