# SPDX-License-Identifier: Apache-2.0
"""The journal: one line an operation, torn lines cut, several processes, replaced files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpuctl.sim.journal import Journal, JournalDamaged, JournalRecord


class Reader:
    """A journal and the entries read from it."""

    def __init__(self, directory: Path) -> None:
        self.header: object = None
        self.seen: list[list[JournalRecord]] = []
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


@pytest.mark.parametrize("length", [0, 5, 9, 12, 21])
def test_a_truncated_journal_is_damaged_for_old_and_new_readers(writer: Reader, tmp_path: Path, length: int) -> None:
    for number in range(3):
        with writer.journal.locked():
            writer.journal.append([["a", number]])
    os.truncate(tmp_path / "journal", length)
    with pytest.raises(JournalDamaged, match="bytes"), Reader(tmp_path).journal.locked():
        pass
    with pytest.raises(JournalDamaged, match="bytes"):
        writer.journal.refresh()
    assert os.path.getsize(tmp_path / "journal") == length
    writer.journal.remove()
    with Reader(tmp_path).journal.locked():
        pass


def test_a_deleted_journal_is_damage_and_a_new_one_is_not(writer: Reader, tmp_path: Path) -> None:
    (tmp_path / "journal").unlink()
    with pytest.raises(JournalDamaged, match="gone"), Reader(tmp_path).journal.locked():
        pass
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    with Reader(fresh).journal.locked():
        pass


def test_a_kill_before_the_length_is_written_loses_nothing(writer: Reader, tmp_path: Path) -> None:
    with writer.journal.locked():
        writer.journal.append([["a"]])
    for length in (b"", b"%020d\n" % 9):
        (tmp_path / "lock").write_bytes(length)
        other = Reader(tmp_path)
        with other.journal.locked():
            assert other.seen == [[["a"]]]


def test_a_first_line_that_is_torn_is_damage(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b'{"vgpu')
    with pytest.raises(JournalDamaged, match="has lost its first line"), Reader(tmp_path).journal.locked():
        pass


def test_a_whole_line_that_is_no_json_is_damage(writer: Reader, tmp_path: Path) -> None:
    with open(tmp_path / "journal", "ab") as file:
        file.write(b"nonsense\n")
    with pytest.raises(JournalDamaged, match="line 2"):
        writer.journal.refresh()


def test_a_replaced_journal_is_reread(writer: Reader, tmp_path: Path) -> None:
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
