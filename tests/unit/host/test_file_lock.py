# SPDX-License-Identifier: Apache-2.0
"""The host lock, between real processes."""

import contextlib
import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import claim_store
from tests.unit.host.test_claim_store import claim_of
from vgpuctl.errors import FileFailed, HostCannot, Locked
from vgpuctl.host.file_lock import make_private_directories
from vgpuctl.host.host_file import HostFileOnDisk
from vgpuctl.host.operation_files import OperationFiles
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.vm import DrainedVm, StuckWrite, VmInProgress

CLAIM = claim_of("one")

HOLDER = """
import sys
from pathlib import Path
from tests.hosts import claim_store
with claim_store(Path(sys.argv[1]), "vgpuctl create-vm slow").lock(0):
    print("held", flush=True)
    sys.stdin.read()
"""


class Time:
    """A clock that only advances while a caller waits."""

    def __init__(self):
        self.pauses = []

    def now(self):
        return 0.0

    def monotonic(self):
        return sum(self.pauses)

    def sleep(self, seconds):
        self.pauses.append(seconds)


def store_in(directory, clock=None):
    return claim_store(directory, "vgpuctl create-vm", clock=clock)


@contextlib.contextmanager
def held_elsewhere(directory):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "held\n"
        yield child
        child.stdin.close()


def test_held_says_so_only_meanwhile(tmp_path):
    store = store_in(tmp_path / "run")
    assert not store.is_locked
    with store.lock(0):
        assert store.is_locked
        holder = json.loads((tmp_path / "run/lock").read_text())
        assert (holder["pid"], holder["command"]) == (os.getpid(), "vgpuctl create-vm")
    assert not store.is_locked
    assert (tmp_path / "run/lock").read_text() == ""


def test_an_error_inside_releases(tmp_path):
    store = store_in(tmp_path)
    with pytest.raises(KeyError), store.lock(0):
        raise KeyError
    assert not store.is_locked
    with store.lock(0):
        pass


def test_taking_it_twice_is_a_bug(tmp_path):
    store = store_in(tmp_path)
    with store.lock(0), pytest.raises(AssertionError), store.lock(0):
        pass


def test_a_timeout_names_the_holder(tmp_path):
    clock = Time()
    store = store_in(tmp_path, clock)
    with held_elsewhere(tmp_path) as child:
        with pytest.raises(Locked) as caught, store.lock(2.0):
            pass
        assert caught.value.facts["pid"] == child.pid
        assert caught.value.facts["command"] == "vgpuctl create-vm slow"
        assert f"pid {child.pid} (vgpuctl create-vm slow)" in caught.value.message
    assert not store.is_locked
    assert sum(clock.pauses) == pytest.approx(2.0)
    assert max(clock.pauses) <= 0.05
    assert clock.pauses[:3] == [0.001, 0.002, 0.004]


def test_a_holder_without_a_name_is_still_a_holder(tmp_path):
    with held_elsewhere(tmp_path) as child:
        os.truncate(tmp_path / "lock", 0)
        with pytest.raises(Locked, match=f"holds the host lock: pid {child.pid}$"), store_in(tmp_path).lock(0):
            pass


def test_a_killed_holder_frees_the_lock(tmp_path):
    with held_elsewhere(tmp_path) as child:
        child.kill()
        child.wait()
        with store_in(tmp_path).lock(0):
            pass


def test_a_program_started_meanwhile_does_not_have_it(tmp_path):
    code = "import os; print([os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')])"
    with store_in(tmp_path).lock(0):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, close_fds=False)
    assert "pipe:" in done.stdout
    assert str(tmp_path / "lock") not in done.stdout


FULL = """
import os, resource, signal, sys
from pathlib import Path
from tests.hosts import claim_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
store = claim_store(Path(sys.argv[1]))
with store.lock(0):
    print(store.is_locked, os.stat(sys.argv[1] + "/lock").st_size, flush=True)
    sys.stdin.read()
print(store.is_locked)
"""


@pytest.mark.parametrize("space", [0, 5])
def test_without_a_written_name_the_lock_still_holds(tmp_path, space):
    (tmp_path / "lock").write_text("an earlier holder's name")
    argv = [sys.executable, "-c", FULL, str(tmp_path), str(space)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == f"True {space}\n"
        with pytest.raises(Locked, match=f"holds the host lock: pid {child.pid}$"), store_in(tmp_path).lock(0):
            pass
        child.stdin.close()
        assert child.stdout.read() == "False\n"
    with store_in(tmp_path).lock(0):
        pass


def test_a_run_directory_that_cannot_be_used_names_itself(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HostCannot, match="file") as caught, store_in(tmp_path / "file").lock(0):
        pass
    assert caught.value.hint == "run it as root"


def test_a_full_run_directory_has_a_hint_also_for_inodes(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(FileFailed, match="No space left on device") as caught, store_in(tmp_path / "run").lock(0):
        pass
    assert f"df -i {tmp_path}" in caught.value.hint
    assert (caught.value.code, caught.value.facts["errno"]) == ("os-error", errno.ENOSPC)


def _count(directory, locked, barrier, rounds):
    """Repeatedly add one to a number in a file, as placement adds a claim to those it read."""
    store = store_in(directory)
    number = directory / "number"
    barrier.wait()
    for _ in range(rounds):
        with store.lock(60) if locked else contextlib.nullcontext():
            result = int(number.read_text() or "0")
            os.sched_yield()
            number.write_text(str(result + 1))


def _counted(directory, *, locked):
    context = multiprocessing.get_context("fork")
    barrier, rounds = context.Barrier(6), 60
    (directory / "number").write_text("0")
    racers = [context.Process(target=_count, args=(directory, locked, barrier, rounds)) for _ in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    codes = {racer.exitcode for racer in racers}
    return codes, int((directory / "number").read_text() or "0"), 6 * rounds


def test_read_and_write_belong_together_only_with_the_lock(tmp_path):
    codes, result, meant = _counted(tmp_path, locked=True)
    assert (codes, result) == ({0}, meant)
    codes, result, meant = _counted(tmp_path, locked=False)
    assert codes != {0} or result != meant, "the race is not one: this test would pass without a lock"


def test_the_holder_is_scheduled_first_and_only_meanwhile(tmp_path):
    before = os.getpriority(os.PRIO_PROCESS, 0)
    store = store_in(tmp_path)
    with store.lock(0):
        assert os.getpriority(os.PRIO_PROCESS, 0) == -20
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_without_priority_it_is_still_held(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refused)
    store = store_in(tmp_path)
    with store.lock(0):
        assert store.is_locked


def test_the_gpu_creation_lock_is_exclusive_and_is_not_the_host_lock(tmp_path):
    store = store_in(tmp_path, Time())
    with store.gpu_creation_lock("0000:3b:00.0", 1.0):
        assert not store.is_locked
        with store.lock(0), store.gpu_creation_lock("0000:86:00.0", 0):
            pass
        with pytest.raises(Locked) as caught, store.gpu_creation_lock("0000:3b:00.0", 1.0):
            pass
    assert "GPU 0000:3b:00.0 for a new vGPU" in str(caught.value)
    with store.gpu_creation_lock("0000:3b:00.0", 0):
        pass


FLOCK = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def stopped_holder(path):
    """Another process has the lock on a file or directory, and is stopped."""
    with subprocess.Popen(
        [sys.executable, "-c", FLOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "held\n"
        child.send_signal(signal.SIGSTOP)
        try:
            yield child
        finally:
            child.send_signal(signal.SIGCONT)
            child.stdin.close()


def writes(run):
    """Every change of a file in a run directory that takes a directory's lock."""
    store = claim_store(run, clock=Time(), wait_seconds=2.0)
    process = HostProcesses().current_process()
    return store, {
        "claims": [
            lambda: store.add(CLAIM),
            lambda: store.replace(CLAIM),
            lambda: store.remove(CLAIM.carrier, CLAIM.vm_uuid),
        ],
        "drained": [lambda: store.add_drained_vm(DrainedVm("u", None, process))],
        "working": [lambda: store.add_vm_in_progress(VmInProgress("u", process))],
        "stuck": [lambda: store.add_stuck_write(StuckWrite(process, "0000:3b:00.0", "/sys/x", "1"))],
    }


@pytest.mark.parametrize("name", ["claims", "drained", "working", "stuck"])
def test_a_directory_that_a_stopped_process_has_locked_is_named_after_the_wait(tmp_path, name):
    store, calls = writes(tmp_path / "run")
    make_private_directories(tmp_path / "run", tmp_path / "run" / name)
    with stopped_holder(tmp_path / "run" / name) as child:
        for call in calls[name]:
            with pytest.raises(Locked, match=f"{tmp_path}/run/{name}: pid {child.pid}$") as caught:
                call()
            assert f"kill -CONT {child.pid}" in caught.value.hint
        assert sum(store._clock.pauses) == pytest.approx(2.0), "the wait is not repeated for each call"
    calls[name][0]()


@pytest.mark.parametrize("name", ["claims", "drained", "working", "stuck", "operations", "."])
@pytest.mark.parametrize("target", ["nowhere", "elsewhere"])
def test_a_link_in_place_of_a_directory_is_refused_by_name(tmp_path, name, target):
    (tmp_path / "elsewhere").mkdir()
    path = Path(os.path.normpath(tmp_path / "run" / name))
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(tmp_path / target)
    _, calls = writes(tmp_path / "run")
    with pytest.raises(HostCannot, match=f"^{path} is a symbolic link to {tmp_path / target}") as caught:
        calls.get(name, calls["claims"])[0]()
    assert f"mv {path} " in caught.value.hint
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("name", ["lock", "turn-0000:3b:00.0"])
def test_a_link_in_place_of_a_lock_is_refused_by_name(tmp_path, name):
    (tmp_path / name).symlink_to(tmp_path / "nowhere")
    store = store_in(tmp_path)
    lock = store.lock(0) if name == "lock" else store.gpu_creation_lock("0000:3b:00.0", 0)
    with pytest.raises(HostCannot, match=f"^{tmp_path / name} is a symbolic link to {tmp_path}/nowhere"), lock:
        pass


def test_the_directory_of_host_yaml_has_the_same_deadline(tmp_path):
    file = HostFileOnDisk(tmp_path / "host.yaml", lock_held=lambda: False, clock=Time(), wait_seconds=1.0)
    with stopped_holder(tmp_path) as child, pytest.raises(Locked, match=f"pid {child.pid}$"):
        file.replace("version: 1\n", None)
    file.replace("version: 1\n", None)


def test_an_operation_whose_file_vanishes_each_time_fails_in_the_end(tmp_path, monkeypatch):
    """As long as another process removes the file before it has its name; the loop has an end."""

    def vanished(source, target):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))

    monkeypatch.setattr(os, "rename", vanished)
    with pytest.raises(FileNotFoundError):
        OperationFiles(tmp_path / "run", HostProcesses()).begin()
