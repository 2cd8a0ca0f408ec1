# SPDX-License-Identifier: Apache-2.0
"""The templates that come with vgpuctl are found, and nothing else is."""

from __future__ import annotations

import pytest

from vgpuctl.domain.templates import builtin_names, builtin_template


def test_the_built_in_template_is_found() -> None:
    text = builtin_template("vm")
    assert text is not None
    assert "<domain" in text
    assert builtin_names() == ("vm",)


@pytest.mark.parametrize("name", ["", "nothing", "../templates/vm", "vm.xml.j2", "/etc/passwd", "vm\n", "vm/"])
def test_nothing_else_is_read(name: str) -> None:
    assert builtin_template(name) is None
