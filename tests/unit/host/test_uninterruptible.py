# SPDX-License-Identifier: Apache-2.0
"""Writes in a child. A FIFO without a reader plays a kernel that does not return."""

import errno
import fcntl
import os
import signal

import pytest

from tests.hosts import claim_store
from vgpuctl.errors import Stuck
from vgpuctl.host.files import HostFiles
from vgpuctl.host.processes import HostProcesses
from vgpuctl.host.uninterruptible import UninterruptibleWriter

GPU = "0000:3b:00.0"


@pytest.fixture
def store(tmp_path):
    return claim_store(tmp_path / "run")


@pytest.fixture
def files(store):
    return HostFiles(lock_held=lambda: store.is_locked, writer=UninterruptibleWriter(store, HostProcesses()))


def drained(fifo):
    """Read what the blocked child writes, and wait for its end."""
    with open(fifo, "rb") as file:
        return file.read()


def test_a_write_that_comes_back(tmp_path, files, store):
    path = tmp_path / "remove"
    path.write_text("")
    files.write_uninterruptible(str(path), "1", gpu=GPU, deadline_seconds=30)
    assert path.read_text() == "1"
    assert store.stuck_writes() == ()


def test_the_childs_errno_comes_back(files):
    with pytest.raises(OSError, match=r".") as caught:
        files.write_uninterruptible("/proc/self/oom_score_adj", "no number", gpu=GPU, deadline_seconds=30)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "/proc/self/oom_score_adj")


def test_a_missing_file_is_missing(tmp_path, files):
    with pytest.raises(FileNotFoundError):
        files.write_uninterruptible(str(tmp_path / "gone"), "1", gpu=GPU, deadline_seconds=30)


def test_a_path_is_never_shell(tmp_path, files):
    path = tmp_path / "a; touch b $(touch c)"
    path.write_text("")
    files.write_uninterruptible(str(path), "$HOME '", gpu=GPU, deadline_seconds=30)
    assert path.read_text() == "$HOME '"
    assert sorted(os.listdir(tmp_path)) == [path.name]


def test_a_blocked_write_is_recorded_and_left_alone(tmp_path, files, store):
    fifo = tmp_path / "remove"
    os.mkfifo(fifo)
    with pytest.raises(Stuck) as caught:
        files.write_uninterruptible(str(fifo), "1", gpu=GPU, deadline_seconds=0.1)
    facts = caught.value.facts
    assert (facts["path"], facts["gpu"]) == (str(fifo), GPU)
    assert str(facts["pid"]) in caught.value.message
    (write,) = store.stuck_writes()
    assert (write.process.pid, write.gpu, write.path, write.text) == (facts["pid"], GPU, str(fifo), "1")
    # The write continues by itself, and then the record is removed.
    assert drained(fifo) == b"1"
    os.waitid(os.P_PID, write.process.pid, os.WEXITED | os.WNOWAIT)
    assert store.stuck_writes() == ()
    assert os.listdir(tmp_path / "run/stuck") == []


def test_a_slow_write_that_comes_back_in_time_leaves_no_record(tmp_path, store):
    fifo = tmp_path / "remove"
    os.mkfifo(fifo)
    seen = []

    class Records:
        """Reads the FIFO as soon as the write is recorded, so that the write returns."""

        def add_stuck_write(self, write):
            store.add_stuck_write(write)
            seen.extend(store.stuck_writes())
            assert drained(fifo) == b"1"

        def remove_stuck_write(self, write):
            store.remove_stuck_write(write)

    writer = UninterruptibleWriter(Records(), HostProcesses())
    writer.write(str(fifo), "1", path=str(fifo), gpu=GPU, deadline_seconds=30)
    assert [write.path for write in seen] == [str(fifo)]
    assert store.stuck_writes() == ()


def test_the_child_inherits_nothing_and_gets_no_signal(tmp_path, files, store):
    fifo = tmp_path / "remove"
    os.mkfifo(fifo)
    secret = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(secret, True)
    with pytest.raises(Stuck) as caught:
        files.write_uninterruptible(str(fifo), "1", gpu=GPU, deadline_seconds=0.5)
    pid = caught.value.facts["pid"]
    assert os.getsid(pid) == pid
    links = []
    while len(links) != 3 or any(link.endswith(".py") for link in links):  # until it is in the FIFO
        links = [os.path.realpath(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    assert sorted(os.path.basename(link).partition(":")[0] for link in links) == ["null", "null", "pipe"]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    assert drained(fifo) == b"1"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(secret)


def test_the_child_does_not_keep_the_host_lock(tmp_path, store):
    """The port refuses a write under the lock; even a write that bypasses this must not hold the lock forever."""
    fifo = tmp_path / "remove"
    os.mkfifo(fifo)
    writer = UninterruptibleWriter(store, HostProcesses())
    with store.lock(0), pytest.raises(Stuck):
        writer.write(str(fifo), "1", path=str(fifo), gpu=GPU, deadline_seconds=0.1)
    with open(tmp_path / "run/lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    drained(fifo)


def test_a_signal_while_waiting_still_leaves_a_record(tmp_path, store):
    fifo = tmp_path / "remove"
    os.mkfifo(fifo)

    class Stopped(Exception):
        pass

    def stop(_number, _frame):
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Stopped):
            UninterruptibleWriter(store, HostProcesses()).write(
                str(fifo), "1", path=str(fifo), gpu=GPU, deadline_seconds=30
            )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert [write.path for write in store.stuck_writes()] == [str(fifo)]
    drained(fifo)


def test_without_a_writer_nothing_is_written(tmp_path):
    files = HostFiles(str(tmp_path), lock_held=lambda: False)
    with pytest.raises(OSError, match="this host is read-only") as caught:
        files.write_uninterruptible("/a", "1", gpu=GPU, deadline_seconds=1)
    assert caught.value.errno == errno.EROFS
