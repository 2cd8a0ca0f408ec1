# SPDX-License-Identifier: Apache-2.0
"""An operation is alive exactly while its own open file description holds the lock on its file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.hosts import claim_store
from vgpuctl.errors import Stuck
from vgpuctl.host.operation_files import OPERATIONS, OperationFiles
from vgpuctl.host.processes import HostProcesses
from vgpuctl.host.uninterruptible import UninterruptibleWriter

THREE = """
import signal, sys
from pathlib import Path
from tests.unit.host.test_operation_files import begun
kept = [begun(Path(sys.argv[1])) for _ in range(3)]
print(*(one.current().id for one in kept), flush=True)
signal.pause()
"""


def begun(run: Path) -> OperationFiles:
    """Begin an operation."""
    operations = OperationFiles(run, HostProcesses())
    operations.begin()
    return operations


def names(run: Path) -> set[str]:
    return set(os.listdir(run / OPERATIONS))


def is_living(run: Path, operation: str | None) -> bool:
    return bool(OperationFiles(run, HostProcesses()).living(frozenset({operation})))


def test_it_is_written_with_its_first_claim_and_gone_with_its_end(tmp_path: Path) -> None:
    operations = OperationFiles(tmp_path, HostProcesses())
    operation = operations.current()
    assert not (tmp_path / OPERATIONS).exists()
    assert not is_living(tmp_path, operation.id)
    operations.begin()
    operations.begin()
    assert names(tmp_path) == {operation.id}
    assert is_living(tmp_path, operation.id)
    operations.end()
    operations.end()
    assert names(tmp_path) == set()
    assert not is_living(tmp_path, operation.id)
    assert operations.current().id != operation.id


def test_two_operations_of_one_process_are_told_apart(tmp_path: Path) -> None:
    one, two = begun(tmp_path), begun(tmp_path)
    ids = frozenset({one.current().id, two.current().id})
    assert one.living(ids) == two.living(ids) == ids
    one.end()
    assert two.living(ids) == {two.current().id}


def test_none_is_no_operation_and_in_a_captured_tree_all_count_as_alive(tmp_path: Path) -> None:
    begun(tmp_path)
    assert not is_living(tmp_path, None)
    assert not is_living(tmp_path, "0123456789abcdef")
    captured = OperationFiles(tmp_path, HostProcesses(), captured=True)
    assert captured.living(frozenset({None, "0123456789abcdef"})) == {None, "0123456789abcdef"}


def test_a_directory_that_cannot_be_read_is_not_no_operation(tmp_path: Path) -> None:
    (tmp_path / OPERATIONS).symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"levels of symbolic links|Not a directory"):
        is_living(tmp_path, "0123456789abcdef")


def test_a_killed_process_ends_all_its_operations_and_their_files_can_be_removed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", THREE, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ids = frozenset(child.stdout.readline().split())
        here = OperationFiles(tmp_path, HostProcesses())
        assert len(ids) == 3
        assert here.living(ids) == ids
        here.remove_ended()
        assert names(tmp_path) == ids
        child.send_signal(signal.SIGKILL)
    assert here.living(ids) == frozenset()
    here.remove_ended()
    assert names(tmp_path) == set()
    assert here.living(ids) == frozenset()


def test_a_file_without_its_name_is_of_no_living_operation(tmp_path: Path) -> None:
    operations = begun(tmp_path)
    (tmp_path / OPERATIONS / ".unnamed").write_text("{")
    operations.remove_ended()
    assert names(tmp_path) == {operations.current().id}


def test_a_living_operation_is_never_seen_as_dead(tmp_path: Path) -> None:
    """Probers ask without a pause, and others remove what has ended, while operations are born and end."""
    ended, wrong = Event(), []
    alive: list[str | None] = [None]

    def probe() -> None:
        here = OperationFiles(tmp_path, HostProcesses())
        while not ended.is_set():
            asked = alive[0]
            if asked is not None and not here.living(frozenset({asked})) and alive[0] == asked:
                wrong.append(asked)
            here.remove_ended()

    probers = [Thread(target=probe) for _ in range(3)]
    for prober in probers:
        prober.start()
    try:
        for _ in range(300):
            operations = begun(tmp_path)
            alive[0] = operations.current().id
            os.sched_yield()
            alive[0] = None
            operations.end()
    finally:
        ended.set()
        for prober in probers:
            prober.join()
    assert wrong == []
    assert names(tmp_path) == set()


def test_a_child_that_writes_for_ever_keeps_no_operation_alive(tmp_path: Path) -> None:
    store = claim_store(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    operations = begun(tmp_path)
    writer = UninterruptibleWriter(store, HostProcesses())
    with pytest.raises(Stuck) as raised:
        writer.write(str(tmp_path / "fifo"), "0", path="fifo", gpu="0000:3b:00.0", deadline_seconds=0.2)
    pid = int(str(raised.value.facts["pid"]))
    try:
        descriptor = operations._descriptor
        assert descriptor is not None
        os.close(descriptor)  # as when the process that asked for the write is killed
        os.kill(pid, 0)
        assert not is_living(tmp_path, operations.current().id)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
