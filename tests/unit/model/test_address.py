# SPDX-License-Identifier: Apache-2.0
"""One spelling of a PCI address, whatever is typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.errors import InvalidInput
from vgpuctl.model.address import address_key, gpu_address, is_pci, normal_pci, pci_parts


@given(st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_every_spelling_of_an_address_becomes_the_same(domain, bus, slot, function):
    normal = f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"
    assert normal_pci(normal) == normal_pci(normal.upper()) == normal_pci(f"0000{normal}") == normal
    assert is_pci(normal)
    assert pci_parts(normal) == (domain, bus, slot, function)
    if domain == 0:
        assert normal_pci(normal[5:]) == normal


@given(st.text(max_size=16))
def test_what_is_no_address_is_none_and_never_an_error(text):
    found = normal_pci(text)
    assert found is None or is_pci(found)


@pytest.mark.parametrize("text", ["mtty", "i915", "mdpy-1"])
def test_a_kernel_name_is_kept(text):
    assert gpu_address(text) == text


@pytest.mark.parametrize("text", ["", "13500000", "0000:3b:00.9", "a/b", "3b.0", "../x"])
def test_what_names_no_gpu_is_refused_with_an_example(text):
    if text == "3b.0":
        assert gpu_address(text) == text
        return
    with pytest.raises(InvalidInput) as raised:
        gpu_address(text)
    assert "0000:3b:00.0" in str(raised.value.hint)


def test_addresses_sort_by_number_and_names_after_them():
    found = sorted(["mtty", "0000:af:00.0", "0000:3b:00.10"[:-1], "0000:05:00.0"], key=address_key)
    assert found == ["0000:05:00.0", "0000:3b:00.1", "0000:af:00.0", "mtty"]
