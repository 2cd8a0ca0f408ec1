# SPDX-License-Identifier: Apache-2.0
"""A wheelhouse of the tests depends on nothing but what is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tests.wheels import from_wheel


def test_of_a_package_that_is_there_twice_the_one_that_names_its_files_is_packed(tmp_path: Path) -> None:
    places = []
    for half, about in (("egg-info", "PKG-INFO"), ("dist-info", "METADATA")):
        (place := tmp_path / half / f"twice-1.{half}").mkdir(parents=True)
        (place / about).write_text("Metadata-Version: 2.1\nName: twice\nVersion: 1\n")
        places.append(str(place.parent))
    (tmp_path / "dist-info/twice-1.dist-info/WHEEL").write_text("Tag: py3-none-any\n")

    assert from_wheel("twice", places).read_text("WHEEL") == "Tag: py3-none-any\n"
    assert from_wheel("twice", places[::-1]).read_text("WHEEL") == "Tag: py3-none-any\n"


def test_a_package_that_no_wheel_made_is_not_packed(tmp_path: Path) -> None:
    (place := tmp_path / "bare-1.egg-info").mkdir()
    (place / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: bare\nVersion: 1\n")

    with pytest.raises(PackageNotFoundError, match="bare"):
        from_wheel("bare", [str(tmp_path)])
