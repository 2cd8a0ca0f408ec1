# SPDX-License-Identifier: Apache-2.0
"""Names with a running number."""

from __future__ import annotations

import pytest

from vgpuctl.config.numbered_names import expand_names
from vgpuctl.errors import InvalidInput


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("vdi-{:03}", ("vdi-001", "vdi-002", "vdi-003")),
        ("vdi-{}", ("vdi-1", "vdi-2", "vdi-3")),
        ("{:02}.lab", ("01.lab", "02.lab", "03.lab")),
    ],
)
def test_the_placeholder_is_the_number_from_one(pattern, names):
    assert expand_names(pattern, 3) == names


def test_a_number_that_needs_more_digits_gets_them():
    assert expand_names("v{:02}", 100)[-1] == "v100"


@pytest.mark.parametrize(
    "pattern",
    ["vdi", "", "vdi-{}-{}", "vdi-{0}", "vdi-{n}", "vdi-{:3}", "vdi-{:0}", "vdi-{:x}", "vdi-{:03d}", "vdi-{", "{{}}"],
)
def test_anything_else_is_refused_with_an_example(pattern):
    with pytest.raises(InvalidInput) as raised:
        expand_names(pattern, 3)
    assert "vdi-{:03}" in f"{raised.value.message} {raised.value.hint}"


def test_a_name_that_is_missing_is_refused_with_an_example():
    with pytest.raises(InvalidInput, match=r"vdi-\{:03\}"):
        expand_names(None, 3)


@pytest.mark.parametrize("pattern", ["-{}", "a/{}", "vm {}", "x" * 63 + "{}"])
def test_the_names_must_be_names(pattern):
    with pytest.raises(InvalidInput, match="is not a name"):
        expand_names(pattern, 3)


def test_the_last_name_is_checked_too():
    assert expand_names("x" * 62 + "{}", 9)
    with pytest.raises(InvalidInput, match="is not a name"):
        expand_names("x" * 62 + "{}", 10)
