# SPDX-License-Identifier: Apache-2.0
"""Files that people write are read only if they are regular files, up to a maximum size."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from vgpuctl.regular_file import MAX_BYTES, read_regular_file


def test_a_regular_file_is_read_also_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * MAX_BYTES)
    (tmp_path / "link").symlink_to("file")
    assert read_regular_file(tmp_path / "link") == b"x" * MAX_BYTES
    assert read_regular_file(str(tmp_path / "file"), MAX_BYTES) == b"x" * MAX_BYTES


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("pipe", "it is a pipe, not a regular file"),
        ("socket", "it is a socket, not a regular file"),
        ("zero", "it is a device, not a regular file"),
        ("directory", "it is a directory"),
        ("large", "it is larger than 1024 KiB"),
        ("sparse", "it is larger than 1024 KiB"),
    ],
)
def test_anything_else_is_refused_at_once(tmp_path: Path, kind: str, why: str) -> None:
    path = tmp_path / "x"
    with socket.socket(socket.AF_UNIX) as bound:
        {
            "pipe": lambda: os.mkfifo(path),
            "socket": lambda: bound.bind(str(path)),
            "zero": lambda: path.symlink_to("/dev/zero"),
            "directory": path.mkdir,
            "large": lambda: path.write_bytes(b" " * (MAX_BYTES + 1)),
            "sparse": lambda: (path.touch(), os.truncate(path, 3 << 30)),
        }[kind]()
        with pytest.raises(OSError, match=why) as raised:
            read_regular_file(path)
    assert raised.value.filename == str(path)
