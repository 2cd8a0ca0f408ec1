# SPDX-License-Identifier: Apache-2.0
"""Every spelling of a PCI address becomes the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.errors import InvalidInput
from vgpuctl.model.address import (
    PCI_IN_TEXT,
    address_sort_key,
    format_pci,
    is_pci_address,
    normalize_device,
    normalize_pci,
    parse_gpu_address,
    split_pci,
)

ROOT = Path(__file__).parents[3]


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_every_spelling_of_an_address_becomes_the_same(domain, bus, slot, function):
    normal = f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"
    assert normalize_pci(normal) == normalize_pci(normal.upper()) == normalize_pci(normal.zfill(16)) == normal
    assert normalize_pci(f"{domain:08X}{normal[-8:]}") == format_pci(domain, bus, slot, function) == normal
    assert normalize_device(normal) == normal
    assert normalize_device(normal[:-2]) == format_pci(domain, bus, slot, 0)
    assert re.findall(PCI_IN_TEXT, f"NVRM: GPU {normal} fell off, (PCI:{normal[:-2]})") == [normal, normal[:-2]]
    assert is_pci_address(normal)
    assert split_pci(normal) == (domain, bus, slot, function)
    if domain == 0:
        assert normalize_pci(normal[5:]) == normal


@given(st.text(max_size=16))
def test_an_invalid_address_is_none_and_no_error(text):
    result = normalize_pci(text)
    assert result is None or is_pci_address(result)


@pytest.mark.parametrize("text", ["mtty", "i915", "mdpy-1"])
def test_a_kernel_name_stays(text):
    assert parse_gpu_address(text) == text


@pytest.mark.parametrize("text", ["", "13500000", "0000:3b:00.9", "a/b", "3b.0", "../x"])
def test_an_invalid_gpu_is_refused_with_an_example(text):
    if text == "3b.0":
        assert parse_gpu_address(text) == text
        return
    with pytest.raises(InvalidInput) as raised:
        parse_gpu_address(text)
    assert "0000:3b:00.0" in str(raised.value.hint)


def test_addresses_sort_by_number_and_names_after_them():
    result = sorted(["mtty", "0000:af:00.0", "0000:3b:00.10"[:-1], "0000:05:00.0"], key=address_sort_key)
    assert result == ["0000:05:00.0", "0000:3b:00.1", "0000:af:00.0", "mtty"]


COUNTED = re.compile(r"address\[[-0-9]*:?[0-9]+:?\]|\{domain:|:04x\}:|a-f\]\{4\}\)?[:?]*:")
"""Code that counts an address's digits or formats it itself."""


def test_nothing_else_knows_how_an_address_is_written():
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in ("vgpuctl", "ansible")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if COUNTED.search(line) and str(path.relative_to(ROOT)) != "vgpuctl/model/address.py"
    ]
    other_forms = ("DEVICES_ROOT}/pci{domain:04x}", "domain='0x{domain", "{domain:08X}", "address[:-1]")  # no address
    assert [hit for hit in hits if not any(form in hit for form in other_forms)] == []
