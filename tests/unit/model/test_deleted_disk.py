# SPDX-License-Identifier: Apache-2.0
"""The name of a disk in the bin is its record: it is read back as it was, and nothing else is taken for one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.deleted_disk import BinEntry, parse_bin_entry

UUID = "1f0c6a52-9a3e-4b5c-8d7e-0123456789ab"
ENTRY = BinEntry(1_790_000_000, 14, "ada", UUID, "cad-07", "cad-07-1f0c6a52.qcow2", 20 << 30)
NAME = f"20260921T141320Z+14d+ada+{UUID}++21474836480+cad-07-1f0c6a52.qcow2"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def test_the_name_can_be_read_by_a_person() -> None:
    assert ENTRY.name == NAME
    assert parse_bin_entry(NAME) == ENTRY
    assert ENTRY.purge_at == ENTRY.deleted_at + 14 * 24 * 3600
    assert re.fullmatch("vgpuctl-deleted-[0-9a-f]{12}", ENTRY.logical_name)


@given(TEXT, TEXT, TEXT, st.integers(0, 4_000_000_000), st.integers(1, 366))
def test_every_entry_is_read_back_and_its_name_suits_files_and_tags(
    account: str, vm: str, disk: str, deleted_at: int, days: int
) -> None:
    entry = BinEntry(deleted_at, days, account, UUID, vm, disk, 1)
    assert re.fullmatch(r"[A-Za-z0-9_+.=-]{1,255}", entry.name)
    assert parse_bin_entry(entry.name) == (None if "/" in disk or disk in (".", "..") else entry)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "notes.txt",
        f"{NAME}\n",
        f"x{NAME}",
        NAME.replace("14d", "0d"),
        NAME.replace("14d", "014d"),
        NAME.replace("14d", "367d"),
        NAME.replace("0921T", "0931T"),
        NAME.replace("ada", "=61da"),
        NAME.replace("ada", "a=zz"),
        NAME.replace("ada", "a=FF"),
        NAME.replace("++", "+cad-07+"),
        NAME.replace("cad-07-", "..=2Fcad-07-"),
        NAME.replace("+2147", "+02147"),
        "+".join(["x"] * 7),
    ],
)
def test_another_name_is_no_entry(name: str) -> None:
    assert parse_bin_entry(name) is None


def test_a_name_longer_than_a_file_can_have_is_an_error() -> None:
    with pytest.raises(ValueError, match="longer than 255"):
        BinEntry(0, 1, "\\" * 64, UUID, "vm", "vm.qcow2", 1).name  # noqa: B018
