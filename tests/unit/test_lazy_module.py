# SPDX-License-Identifier: Apache-2.0
"""A module is imported when it is first used, and only then."""

from __future__ import annotations

import sys

import pytest

from vgpuctl.lazy_module import LazyModule


def test_a_module_is_imported_at_its_first_use(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    module = LazyModule("colorsys")
    assert "colorsys" not in sys.modules
    assert module.rgb_to_hls(0, 0, 0) == (0.0, 0.0, 0.0)
    assert "colorsys" in sys.modules


def test_each_use_of_a_missing_module_is_an_import_error():
    module = LazyModule("no_such_module")
    for _ in range(2):
        with pytest.raises(ImportError, match="no_such_module"):
            module.anything()
