# SPDX-License-Identifier: Apache-2.0
"""One host and several processes: killed writers, writers at the same time, compaction, the host lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from tests.hosts import open_sim_host
from tests.unit.sim.hosts import PCI, MakeHost, domain_xml, run_vm, set_type, uuid
from tests.unit.sim.test_state import contents
from vgpuctl.errors import InvalidInput
from vgpuctl.sim import open_host, reset_host
from vgpuctl.sim.core import serialize_calls

MTTY = "/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1"
SCENARIO = "gpus: [{model: mtty, units: 100000}]\n"

WRITER = textwrap.dedent(
    """
    import sys, uuid
    from pathlib import Path
    from vgpuctl.sim import open_host

    scenario, state, seed, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    host = open_host(scenario, state_dir=state)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        name = str(uuid.UUID(int=seed * 1000000 + number))
        host.sysfs.write("/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1/create", name)
        print(name, flush=True)
    """
)


def writer(tmp_path: Path, seed: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "host.yaml"), str(tmp_path / "host.state")]
    process = subprocess.Popen(
        [*command, str(seed), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_a_killed_writer_leaves_all_confirmed_writes(make: MakeHost, tmp_path: Path) -> None:
    """Each round kills a process in the middle of its writes, at a different time."""
    host = make(SCENARIO)
    reported: list[str] = []
    for round_ in range(6):
        process = writer(tmp_path, round_ + 1, 100000)
        go(process)
        assert process.stdout is not None
        for _ in range(20 + 17 * round_):
            reported.append(process.stdout.readline().strip())
        os.kill(process.pid, signal.SIGKILL)
        reported += [line.strip() for line in process.stdout if line.endswith("\n")]
        process.communicate()
        there = host.sysfs.listdir("/sys/bus/mdev/devices")
        assert set(reported) <= set(there)
        assert len(there) <= len(reported) + round_ + 1, "at most the write it was killed in"
    host.sysfs.write(f"{MTTY}/create", uuid(7))
    assert contents(open_host(str(tmp_path / "host.yaml"), state_dir=tmp_path / "host.state")._core.read_state()) == (
        contents(host._core.read_state())
    )


def test_two_processes_at_once_lose_nothing(make: MakeHost, tmp_path: Path) -> None:
    host = make(SCENARIO)
    processes = [writer(tmp_path, seed, 150) for seed in (1, 2)]
    for process in processes:
        go(process)
    reported = [name for process in processes for name in process.communicate()[0].split()]
    assert len(set(reported)) == 300
    assert set(reported) == set(host.sysfs.listdir("/sys/bus/mdev/devices"))
    assert int(host.sysfs.read(f"{MTTY}/available_instances")) == 100000 - 300


def test_the_same_slot_is_given_once(make: MakeHost, tmp_path: Path) -> None:
    """Two views of one host: each checks its rules against the other's latest write."""
    host, other = make("a100-40"), make("a100-40")
    for number in range(5):
        set_type(host, 2 * number, 468)
        set_type(other, 2 * number + 1, 468)
    with pytest.raises(OSError, match="Input/output"):
        set_type(host, 11, 468)


def test_a_changed_scenario_hints_at_reset(make: MakeHost, tmp_path: Path) -> None:
    make(SCENARIO)
    file = tmp_path / "host.yaml"
    file.write_text("version: 1\n# only a remark\n" + SCENARIO)
    make(SCENARIO)
    file.write_text("version: 1\ngpus: []\n")
    with pytest.raises(InvalidInput) as caught:
        make(SCENARIO)
    assert f"vgpuctl --host sim:{file} sim reset" in str(caught.value.hint)
    assert reset_host(str(file), state_dir=tmp_path / "host.state").sysfs.listdir(PCI) == ()
    make(SCENARIO)


@pytest.mark.parametrize("damage", ["nonsense\n", '[["no_such_record"]]\n', '[["undefine"]]\n', "7\n"])
def test_a_damaged_journal_can_be_reset(make: MakeHost, tmp_path: Path, damage: str) -> None:
    host = make("a100-40")
    journal = tmp_path / "host.state" / "journal"
    with journal.open("a") as file:
        file.write(damage)
    with pytest.raises(InvalidInput, match="damaged") as caught:
        host.sysfs.listdir(PCI)
    assert "sim reset" in str(caught.value.hint)
    with pytest.raises(InvalidInput, match="damaged"):
        make("a100-40")
    assert reset_host("a100-40", state_dir=tmp_path / "host.state").hypervisor.domains() == ()


def test_compacting_keeps_the_state_and_other_processes_follow(make: MakeHost, tmp_path: Path) -> None:
    host, other = make("a100-40"), make("a100-40")
    vm = run_vm(host, "stays", 1)
    for _ in range(100):
        set_type(host, 0, 468)
        set_type(host, 0, 0)
    set_type(host, 1, 468)
    before = contents(host._core.read_state())
    other.sysfs.listdir(PCI)
    size = (tmp_path / "host.state" / "journal").stat().st_size
    host._core.compact()
    assert (tmp_path / "host.state" / "journal").stat().st_size < size
    for ports in (host, other, make("a100-40")):
        assert contents(ports._core.read_state()) == before
    host.hypervisor.destroy(vm)
    assert other.hypervisor.domains()[0].live_xml is None
    assert other.machine_id == host.machine_id


def test_nothing_changes_under_the_host_lock(make: MakeHost) -> None:
    host = make("a100-40")
    host.lock_held = lambda: True
    for call in (
        lambda: set_type(host, 0, 468),
        lambda: host.sysfs.write_uninterruptible("/sys/x", "1", gpu="", deadline_seconds=1),
        lambda: host.hypervisor.domains(),
        lambda: host.hypervisor.define(domain_xml("a", 1)),
        lambda: host.storage.pool("default"),
        lambda: host.storage.create_pool("default", "/x"),
    ):
        with pytest.raises(AssertionError, match="host lock"):
            call()
    assert len(host.sysfs.listdir(PCI)) == 18
    assert host.hypervisor.status().available
    assert host.nvml.status().available


WAIT_SECONDS = 30.0


class _Core:
    def __init__(self):
        self.call_lock = threading.RLock()


@serialize_calls
class _Thing:
    def __init__(self):
        self._core = _Core()
        self.inside = 0
        self.most = 0

    def call(self, others):
        self.inside += 1
        self.most = max(self.most, self.inside)
        others.wait(0.01)
        self.inside -= 1
        return self._private()

    def _private(self):
        return "done"


def test_a_public_method_is_one_thread_at_a_time():
    thing, never = _Thing(), threading.Event()
    threads = [threading.Thread(target=thing.call, args=(never,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert thing.most == 1
    assert thing.call(never) == "done"


def test_threads_that_change_and_look_at_a_host_do_not_disturb_each_other(tmp_path):
    storage = open_sim_host(tmp_path, text="version: 1\nstorage: {pools: [{name: default}]}\ngpus: []\n").ports.storage
    wrong: list[BaseException] = []

    def make(thread):
        try:
            for number in range(60):
                storage.create_volume("default", f"{thread}-{number}.qcow2", 1 << 30)
                for _ in range(5):
                    storage.pool("default")
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=make, args=(n,)) for n in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change after nearly every step of the interpreter
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert all(storage.volume("default", f"{t}-{n}.qcow2") for t in range(4) for n in range(60))
