# SPDX-License-Identifier: Apache-2.0
"""vgpuctl's built-in templates are readable, and nothing else."""

from __future__ import annotations

import pytest

from vgpuctl.domain.builtin_templates import list_builtin_templates, read_builtin_template


def test_the_vm_template_is_built_in() -> None:
    text = read_builtin_template("vm")
    assert text is not None
    assert "<domain" in text
    assert list_builtin_templates() == ("vm",)


@pytest.mark.parametrize("name", ["", "nothing", "../templates/vm", "vm.xml.j2", "/etc/passwd", "vm\n", "vm/"])
def test_nothing_else_is_read(name: str) -> None:
    assert read_builtin_template(name) is None
