# SPDX-License-Identifier: Apache-2.0
"""docs/json equals what the program generates; VGPUCTL_REGENERATE=1 regenerates them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.cli.conftest import ROOT
from vgpuctl.cli import schemas

DIRECTORY = ROOT / "docs" / "json"
SCHEMAS = {kind: schemas.document_schema(kind) for kind in schemas.all_kinds()}
FILES = {
    DIRECTORY / f"{kind}.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    for kind, schema in SCHEMAS.items()
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_file_is_what_the_program_says(path: Path) -> None:
    if os.environ.get("VGPUCTL_REGENERATE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FILES[path], encoding="utf-8")
    assert path.read_text(encoding="utf-8") == FILES[path], "run the tests with VGPUCTL_REGENERATE=1"
