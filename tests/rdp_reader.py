# SPDX-License-Identifier: Apache-2.0
"""A strict reader of RDP files: what any client understands, and nothing else."""

from __future__ import annotations

import re

LINE = re.compile(r"(?P<name>[a-z][a-z0-9 -]*):(?P<type>[is]):(?P<value>[ -~]*)")
DANGEROUS = re.compile(r"alternate shell|shell working directory|remoteapp.*|disableremoteapp.*|pcb|loadbalanceinfo")


def read_rdp(text: str) -> dict[str, int | str]:
    """Return the keys of an RDP file with their values.

    Raises:
        AssertionError: a line is none, a key is there twice, or starts a program.
    """
    assert text.endswith("\r\n")
    values: dict[str, int | str] = {}
    for line in text.removesuffix("\r\n").split("\r\n"):
        match = LINE.fullmatch(line)
        assert match is not None, line
        name, kind, value = match["name"], match["type"], match["value"]
        assert name not in values, name
        assert not DANGEROUS.fullmatch(name), name
        values[name] = int(value) if kind == "i" else value
    return values
