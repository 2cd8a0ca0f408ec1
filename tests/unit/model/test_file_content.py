# SPDX-License-Identifier: Apache-2.0
"""Content that stands where a path is expected is recognized; paths and names are not taken for it."""

from __future__ import annotations

import pytest

from vgpuctl.model.file_content import is_file_content


@pytest.mark.parametrize(
    "text", ["#cloud-config", "a: b", "password:", "/root\nx", " {}", "[1]", "<unattend>", "A" * 120, "\x1b"]
)
def test_content_is_recognized(text: str) -> None:
    assert is_file_content(text)


@pytest.mark.parametrize("text", ["", "/root/user-data.yaml", "user data.yaml", "net-{:03}.yaml", "a:b", "C#/x"])
def test_a_path_is_no_content(text: str) -> None:
    assert not is_file_content(text)
