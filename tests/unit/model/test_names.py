# SPDX-License-Identifier: Apache-2.0
"""Every spelling of a PCI address becomes the same.

The parts of NVIDIA's profile names, with the model and without; other makers' names have none.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.errors import InvalidInput
from vgpuctl.model.names import (
    PCI_IN_TEXT,
    ProfileName,
    address_sort_key,
    format_pci,
    is_pci_address,
    normalize_device,
    normalize_pci,
    parse_gpu_address,
    parse_profile_name,
    profile_of_type,
    split_pci,
    strip_board,
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
        if COUNTED.search(line) and str(path.relative_to(ROOT)) != "vgpuctl/model/names.py"
    ]
    other_forms = ("DEVICES_ROOT}/pci{domain:04x}", "domain='0x{domain", "{domain:08X}", "address[:-1]")  # no address
    assert [hit for hit in hits if not any(form in hit for form in other_forms)] == []


@pytest.mark.parametrize(
    ("profile", "parts"),
    [
        ("A100-4C", ProfileName("A100", "4C", 0, "C", exclusive=False)),
        ("A100-1-5C", ProfileName("A100", "1-5C", 1, "C", exclusive=False)),
        ("A100-1-5CME", ProfileName("A100", "1-5CME", 1, "C", exclusive=True)),
        ("T4-2B4", ProfileName("T4", "2B4", 0, "B", exclusive=True)),
        ("T4-16A", ProfileName("T4", "16A", 0, "A", exclusive=True)),
        ("RTX6000-Ada-4Q", ProfileName("RTX6000-Ada", "4Q", 0, "Q", exclusive=False)),
        ("6000D-1-42Q", ProfileName("6000D", "1-42Q", 1, "Q", exclusive=False)),
        ("4Q", ProfileName("", "4Q", 0, "Q", exclusive=False)),
        ("1-10C", ProfileName("", "1-10C", 1, "C", exclusive=False)),
    ],
)
def test_the_parts_of_nvidias_names(profile: str, parts: ProfileName) -> None:
    assert parse_profile_name(profile) == parts
    assert strip_board(profile) == parts.without_board


@pytest.mark.parametrize("profile", ["i915-GVTg_V5_4", "mtty-2", "", "A100", "VF", "468"])
def test_other_makers_names_have_no_parts_and_are_whole_without_a_model(profile: str) -> None:
    assert parse_profile_name(profile) is None
    assert strip_board(profile) == profile


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("GRID A100-4C", "A100-4C"),
        ("NVIDIA RTX6000-Ada-4Q", "RTX6000-Ada-4Q"),
        ("NVIDIA RTX 6000D-1-42Q", "6000D-1-42Q"),
        ("NVIDIA RTX Pro 4500 Blackwell DC-1-2", "DC-1-2"),
        ("NVIDIA GeForce RTX 3050", "NVIDIA GeForce RTX 3050"),
        ("nvidia-468", "nvidia-468"),
        ("", ""),
    ],
)
def test_a_profile_is_the_last_word_only_where_that_names_a_board(name: str, profile: str) -> None:
    assert profile_of_type(name) == profile
