# SPDX-License-Identifier: Apache-2.0
"""The folders and programs with blobs: real files, links, FIFOs, owners, and programs that misbehave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.domain_joins import as_saved, blob_text, put_blob, put_program
from vgpuctl.host.domain_joins import DomainJoinFiles
from vgpuctl.model.domain_join import BlobUse, JoinSource

USE, OTHER = BlobUse("corp", "w1", "1a"), BlobUse("corp", "w1", "2b")
MAX = 4096
SAVED = as_saved(blob_text())
LIMITS = {"deadline_seconds": 20.0, "max_bytes": MAX}


@pytest.fixture
def joins(tmp_path: Path) -> DomainJoinFiles:
    tmp_path.chmod(0o755)
    return DomainJoinFiles(tmp_path / "domain-joins", owner=os.geteuid())


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def test_a_blob_is_used_once_and_by_one_setup(joins, tmp_path):
    path = put_blob(tmp_path, "w1")
    assert (joins.source("corp"), joins.read(USE, MAX)) == (JoinSource.FOLDER, SAVED)
    joins.claim(USE)
    assert (joins.read(USE, MAX), joins.read(OTHER, MAX)) == (SAVED, None)
    joins.claim(USE)
    assert joins.read(USE, MAX) == SAVED, "a second try of the same setup"
    joins.forget(USE)
    assert (joins.read(USE, MAX), files(path)) == (None, {})
    joins.forget(USE)
    joins.release(USE)
    assert files(path) == {}


def test_a_fresh_blob_goes_before_the_used_one_and_claims_of_others_are_deleted(joins, tmp_path):
    path = put_blob(tmp_path, "w1", "old")
    put_blob(tmp_path, "w10", "tenth")
    joins.claim(USE)
    joins.claim(BlobUse("corp", "w10", "9"))
    put_blob(tmp_path, "w1", "new")
    assert joins.read(USE, MAX) == b"new"
    assert joins.read(USE, MAX, claimed=True) == b"old"
    joins.claim(OTHER)
    assert files(path) == {"w1.2b.used": b"new", "w10.9.used": b"tenth"}


def test_what_no_guest_got_is_fresh_again_unless_there_is_a_newer_one(joins, tmp_path):
    path = put_blob(tmp_path, "w1", "old")
    joins.claim(USE)
    joins.release(USE)
    assert files(path) == {"w1.blob": b"old"}
    joins.claim(USE)
    put_blob(tmp_path, "w1", "new")
    joins.release(USE)
    assert files(path) == {"w1.blob": b"new"}


def test_without_an_entry_there_is_none(joins, tmp_path):
    assert joins.source("corp") is None
    put_blob(tmp_path, "w2")
    assert (joins.source("lab"), joins.read(USE, MAX)) == (None, None)
    joins.claim(USE)


@pytest.mark.parametrize("where", ["domain-joins", "domain-joins/corp", "domain-joins/corp/w1.blob", "."])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_can_write_to_is_refused(joins, tmp_path, where, mode):
    put_blob(tmp_path, "w1")
    path = tmp_path / where
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(ValueError, match="is not root's alone"):
        joins.read(USE, MAX)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o601])
def test_a_blob_that_others_can_read_is_refused(joins, tmp_path, mode):
    put_blob(tmp_path, "w1", mode=mode)
    with pytest.raises(ValueError, match=r"w1.blob is not root's alone"):
        joins.read(USE, MAX)


def test_a_folder_that_others_can_list_is_refused(joins, tmp_path):
    put_blob(tmp_path, "w1").parent.chmod(0o750)
    for read in (lambda: joins.source("corp"), lambda: joins.read(USE, MAX), lambda: joins.claim(USE)):
        with pytest.raises(ValueError, match="corp is not root's alone"):
            read()


def test_another_owner_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    put_blob(tmp_path, "w1")
    others = DomainJoinFiles(tmp_path / "domain-joins", owner=os.geteuid() + 1)
    with pytest.raises(ValueError, match="is not root's alone"):
        others.source("corp")


def test_links_and_pipes_are_not_opened(joins, tmp_path):
    path = put_blob(tmp_path, "w1")
    secret = tmp_path / "shadow"
    secret.write_text("x" * 80)
    secret.chmod(0o600)
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(ValueError, match="is no regular file"):
        joins.read(USE, MAX)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(ValueError, match="is no regular file"):
        joins.read(USE, MAX)
    path.unlink()
    path.mkdir(0o700)
    with pytest.raises(ValueError, match="is no regular file"):
        joins.read(USE, MAX)


def test_an_entry_that_is_a_link_is_refused(joins, tmp_path):
    folder = put_blob(tmp_path, "w1").parent
    (folder.parent / "link").symlink_to(folder)
    with pytest.raises(ValueError, match="link is neither a folder nor a program"):
        joins.source("link")
    with pytest.raises(OSError, match="link"):
        joins.read(BlobUse("link", "w1", "1"), MAX)
    folder.parent.rename(tmp_path / "moved")
    (tmp_path / "domain-joins").symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match="domain-joins"):
        joins.source("corp")


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_nobody_can_run_is_no_program(joins, tmp_path, mode):
    put_program(tmp_path, "true", mode=mode)
    with pytest.raises(ValueError, match="corp is neither a folder nor a program"):
        joins.source("corp")


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_program_that_others_can_change_is_not_run(joins, tmp_path, mode):
    ran = tmp_path / "ran"
    put_program(tmp_path, f"touch {ran}", mode=mode)
    for call in (lambda: joins.source("corp"), lambda: joins.run("corp", "w1", **LIMITS)):
        with pytest.raises(ValueError, match="corp is not root's alone"):
            call()
    assert not ran.exists()


def test_a_larger_file_is_refused(joins, tmp_path):
    put_blob(tmp_path, "w1", "A" * MAX)
    assert len(joins.read(USE, MAX) or b"") == MAX
    put_blob(tmp_path, "w1", "A" * (MAX + 1))
    with pytest.raises(OSError, match="it is larger than 4 KiB"):
        joins.read(USE, MAX)


def test_a_program_gets_the_computer_and_nothing_else(joins, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "of the caller")
    put_program(tmp_path, 'echo "$# $1 $SECRET $PWD $(cat | wc -c)"')
    assert joins.source("corp") is JoinSource.PROGRAM
    assert joins.run("corp", "$(id)", **LIMITS).split() == [b"1", b"$(id)", b"/", b"0"]


@pytest.mark.parametrize(
    ("script", "kind", "problem"),
    [
        ("echo no right, password secret >&2; exit 3", OSError, "^it ended with status 3$"),
        ("exit 9", OSError, "^it ended with status 9$"),
        ("kill -9 $$", OSError, "^signal 9 ended it$"),
        ("yes", OSError, "^it prints more than 4096 bytes$"),
        ("head -c 300000 /dev/zero >&2; echo lost >&2; exit 1", OSError, "^it ended with status 1$"),
        ("sleep 100", TimeoutError, "^it did not end within 0.2 s$"),
        ("sleep 100 & echo x", TimeoutError, "^it did not end within 0.2 s$"),
        ("exec 1>&- 2>&-; sleep 100", TimeoutError, "^it did not end within 0.2 s$"),
    ],
)
def test_a_program_that_fails_hangs_or_floods_is_an_error(joins, tmp_path, script, kind, problem):
    put_program(tmp_path, script)
    seconds = 0.2 if kind is TimeoutError else 20.0
    with pytest.raises(kind, match=problem):
        joins.run("corp", "w1", deadline_seconds=seconds, max_bytes=MAX)


def test_a_program_without_an_interpreter_is_an_error(joins, tmp_path):
    put_program(tmp_path, "").write_text("#!/no/such/interpreter\n")
    with pytest.raises(OSError, match="No such file"):
        joins.run("corp", "w1", **LIMITS)
    (tmp_path / "domain-joins/corp").unlink()
    with pytest.raises(FileNotFoundError):
        joins.run("corp", "w1", **LIMITS)
