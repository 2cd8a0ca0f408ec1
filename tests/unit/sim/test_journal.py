# SPDX-License-Identifier: Apache-2.0
"""The journal: one line an operation, torn lines cut, several processes, replaced files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpuctl.sim.journal import Damaged, Journal, Record


class Reader:
    """A journal and what it handed out."""

    def __init__(self, directory: Path) -> None:
        self.header: object = None
        self.seen: list[list[Record]] = []
        self.journal = Journal(directory, self._restart, self.seen.append)

    def _restart(self, header: object) -> None:
        self.header = header
        self.seen.clear()


@pytest.fixture
def writer(tmp_path: Path) -> Reader:
    made = Reader(tmp_path)
    with made.journal.locked():
        made.journal.replace("header", [])
    return made


def test_what_one_process_appends_the_other_sees(writer: Reader, tmp_path: Path) -> None:
    other = Reader(tmp_path)
    other.journal.refresh()
    with writer.journal.locked():
        writer.journal.append([["a", 1]])
        writer.journal.append([["b", "é\n"]])
    other.journal.refresh()
    assert (other.header, other.seen) == ("header", [[["a", 1]], [["b", "é\n"]]])
    assert writer.seen == other.seen


def test_a_torn_last_line_never_happened_and_is_cut_by_the_next_writer(writer: Reader, tmp_path: Path) -> None:
    with open(tmp_path / "journal", "ab") as file:
        file.write(b'[["half",')
    other = Reader(tmp_path)
    other.journal.refresh()
    assert other.seen == []
    with other.journal.locked():
        other.journal.append([["whole"]])
    writer.journal.refresh()
    assert writer.seen == [[["whole"]]]
    assert (tmp_path / "journal").read_bytes() == b'"header"\n[["whole"]]\n'


def test_a_torn_header_is_as_if_there_were_none(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b'{"vgpu')
    reader = Reader(tmp_path)
    with reader.journal.locked():
        assert reader.journal.lines == 0
        reader.journal.replace("fresh", [["a"]])
    assert (reader.header, reader.seen) == ("fresh", [[["a"]]])


def test_a_whole_line_that_is_no_json_is_damage(writer: Reader, tmp_path: Path) -> None:
    with open(tmp_path / "journal", "ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(Damaged, match="line 2"):
        writer.journal.refresh()


def test_a_replaced_journal_is_read_anew(writer: Reader, tmp_path: Path) -> None:
    other = Reader(tmp_path)
    other.journal.refresh()
    with writer.journal.locked():
        writer.journal.append([["old"]])
        writer.journal.replace("second", [["new"]])
    other.journal.refresh()
    assert (other.header, other.seen) == ("second", [[["new"]]])


def test_only_the_tail_is_read_again(writer: Reader) -> None:
    with writer.journal.locked():
        writer.journal.append([["a"]])
    before = list(writer.seen)
    writer.journal.refresh()
    assert writer.seen == before


def test_a_disk_that_is_full_leaves_no_half_line(writer: Reader, tmp_path: Path) -> None:
    """Written on a file that refuses more than its limit, as a full disk does."""
    import resource
    import signal

    size = (tmp_path / "journal").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4, limits[1]))
        with writer.journal.locked(), pytest.raises(OSError, match=r"."):
            writer.journal.append([["something longer"]])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert os.path.getsize(tmp_path / "journal") == size
    with writer.journal.locked():
        writer.journal.append([["after"]])
    assert writer.seen == [[["after"]]]
