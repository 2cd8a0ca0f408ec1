# SPDX-License-Identifier: Apache-2.0
"""Entries by which guests join domains, for tests."""

from __future__ import annotations

import base64
from pathlib import Path

MARKER = "c2VjcmV0LW1hcmtlci1vZi1h"
"""What is in each blob, and must be in no output."""


def blob_text(number: int = 1) -> str:
    """Return a blob; each number has another one."""
    return MARKER + base64.b64encode(f"{number:04}".encode() * 120).decode()


def as_saved(text: str) -> bytes:
    """Return a blob as djoin writes it into a file."""
    return text.encode("utf-16") + b"\0\0"


def put_blob(
    etc: Path, computer: str, text: str | bytes | None = None, *, name: str = "corp", mode: int = 0o600
) -> Path:
    """Put a blob into a domain's folder below `etc`, a host's /etc/vgpuctl on this machine; return the file."""
    folder = etc / "domain-joins" / name
    for one in (folder.parent, folder):
        one.mkdir(parents=True, exist_ok=True)
        one.chmod(0o700)
    path = folder / f"{computer}.blob"
    data = as_saved(blob_text()) if text is None else text if isinstance(text, bytes) else text.encode()
    path.write_bytes(data)
    path.chmod(mode)
    return path


def put_program(etc: Path, script: str, *, name: str = "corp", mode: int = 0o700) -> Path:
    """Put a program, a script of sh, in a domain's place; return it."""
    path = etc / "domain-joins" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    return path
