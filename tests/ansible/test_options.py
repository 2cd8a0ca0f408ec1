# SPDX-License-Identifier: Apache-2.0
"""The modules' options match the program's. VGPUCTL_REGENERATE=1 regenerates the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ansible import options

FILES = options.files()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_generated_file_matches_the_program(path: Path) -> None:
    if os.environ.get("VGPUCTL_REGENERATE"):
        path.write_text(FILES[path], encoding="utf-8")
    assert path.read_text(encoding="utf-8") == FILES[path], "run the tests with VGPUCTL_REGENERATE=1"
