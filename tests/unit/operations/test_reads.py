# SPDX-License-Identifier: Apache-2.0
"""What a large host costs: 16 GPUs, 32 VFs each, 40 mdev types on every VF, counted read by read.

A verb that changes one VM reads that VM's GPUs: the number of PCI functions does not grow with the host's GPUs.
"""

from __future__ import annotations

import errno
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults import Watch
from tests.hosts import SimulatedHost, create, open_sim_host, request, stop, yes
from vgpuctl.library import GpuHost
from vgpuctl.model.outcome import CallSettings, NoProgress
from vgpuctl.observe import ReadScope, observe, observe_devices
from vgpuctl.operations import queries
from vgpuctl.operations.claim import recheck_scope
from vgpuctl.operations.plans.choose import choose_vgpus
from vgpuctl.value import replace

GPUS, VFS, TYPES = 16, 32, 40
DEVICES = "/sys/bus/pci/devices"


class BigSysfs:
    """A host's tree that is generated on access; every read is counted."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self.gpus = [f"0000:{n * 4 + 16:02x}:00.0" for n in range(GPUS)]

    def read(self, path: str) -> str:
        self.reads[path] += 1
        name = path.rpartition("/")[2]
        if "/mdev_supported_types/" in path:
            number = int(path.split("/")[-2].removeprefix("nvidia-"))
            size = 1024 * (1 + number % 8)
            texts = {
                "name": f"GRID A100-{number}Q\n",
                "description": f"num_heads=4, framebuffer={size}M, max_instance=16\n",
                "available_instances": "1\n",
                "device_api": "vfio-pci\n",
            }
            return texts[name]
        plain = {"class": "0x030200", "vendor": "0x10de", "device": "0x20f1", "numa_node": "0", "sriov_totalvfs": "32"}
        if name not in plain or not path.startswith(DEVICES):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return plain[name] + "\n"

    def listdir(self, path: str) -> tuple[str, ...]:
        if path == DEVICES:
            return tuple(sorted([*self.gpus, *(v for g in self.gpus for v in self._vfs(g))]))
        if path == "/sys/class/mdev_bus":
            return tuple(v for g in self.gpus for v in self._vfs(g))
        if path == "/sys/bus/mdev/devices":
            return ()
        if path.endswith("/mdev_supported_types"):
            return tuple(f"nvidia-{n}" for n in range(400, 400 + TYPES))
        address = path.rpartition("/")[2]
        common = ("class", "device", "driver", "iommu_group", "numa_node", "vendor")
        if address in self.gpus:
            return (*common, "sriov_numvfs", "sriov_totalvfs", *(f"virtfn{n}" for n in range(VFS)))
        if path.startswith("/sys/kernel/iommu_groups/"):
            return ()
        if path == f"{DEVICES}/{address}":
            return (*common, "mdev_supported_types", "physfn")
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def readlink(self, path: str) -> str:
        last = path.rpartition("/")[2]
        if last.startswith("virtfn"):
            return f"../{self._vfs(path.split('/')[-2])[int(last[6:])]}"
        return "../../../../bus/pci/drivers/nvidia" if last == "driver" else "../../../kernel/iommu_groups/9"

    def _vfs(self, gpu: str) -> list[str]:
        return [f"{gpu[:-4]}{n // 8:02x}.{n % 8}" for n in range(4, 4 + VFS)]


def big(tmp_path: Any, sysfs: Any) -> Any:
    """Return ports with the big tree; libvirt and the rest are those of an empty simulated host."""
    return replace(open_sim_host(tmp_path, "empty").ports, sysfs=sysfs)


def test_list_profiles_reads_no_file_twice_and_the_constants_of_a_type_once_for_each_gpu(tmp_path):
    sysfs = BigSysfs()
    answer = queries.list_profiles(big(tmp_path, sysfs))
    assert len(answer.data) == TYPES
    assert {p.free for p in answer.data} == {GPUS * 16}
    assert max(sysfs.reads.values()) == 1
    kinds = Counter(path.rpartition("/")[2] for path in sysfs.reads)
    assert kinds["name"] == kinds["description"] == GPUS * TYPES
    assert kinds["available_instances"] == GPUS * VFS * TYPES
    assert sum(sysfs.reads.values()) <= 25_000


def test_list_gpus_reads_no_type_file_and_at_most_twelve_files_for_each_function(tmp_path):
    sysfs = BigSysfs()
    answer = queries.list_gpus(big(tmp_path, sysfs))
    assert len(answer.data) == GPUS
    assert not [path for path in sysfs.reads if "mdev_supported_types" in path]
    functions = Counter(path.split("/")[5] for path in sysfs.reads if path.startswith(DEVICES))
    assert max(functions.values()) <= 12
    assert max(sysfs.reads.values()) == 1


def test_what_is_read_under_the_lock_is_one_gpu_and_one_type(tmp_path, capsys):
    sysfs = BigSysfs()
    ports = big(tmp_path, sysfs)
    before = observe(ports, ReadScope(types=True, models=False))
    planned = choose_vgpus(before, request("A100-400Q"), ports.new_uuid())
    sysfs.reads.clear()
    began = time.perf_counter()
    observe_devices(ports, recheck_scope(before, planned), vms=before.vms, status=before.hypervisor)
    took = time.perf_counter() - began
    with capsys.disabled():
        print(f"\nlook under the lock, {GPUS} GPUs x {VFS} VFs x {TYPES} types: {took * 1000:.1f} ms")
    kinds = Counter(path.rpartition("/")[2] for path in sysfs.reads)
    assert kinds["available_instances"] == VFS
    assert not {"name", "description"} & set(kinds)
    assert sum(sysfs.reads.values()) <= 200


def test_create_vm_holds_the_lock_for_a_bounded_number_of_reads_and_no_change(tmp_path):
    host = open_sim_host(tmp_path, "l40s-x4")
    under: Counter[str] = Counter()
    watch = Watch(before=lambda number, call, args: under.update([call] if host.ports.claims.is_locked else []))
    create(watch.watch(host.ports), request("L40S-12Q"))
    others = {call for call in under if not call.startswith(("claims.", "operations.", "processes.", "host_file."))}
    assert others <= {"sysfs.read", "sysfs.listdir", "sysfs.readlink"}
    assert 0 < under["sysfs.read"] <= 200


SCENARIO = """version: 1
storage: {{pools: [{{name: default, path: /pool}}]}}
images: [{{path: /old.qcow2, size_gib: 20}}, {{path: /new.qcow2, size_gib: 20}}]
networks: [{{name: default}}]
gpus: [{{model: L40S, count: {gpus}}}]
"""
FEW, MANY = 2, 12
_FUNCTION = re.compile(r"/sys/bus/pci/devices/([^/]+)/")
VERBS: dict[str, tuple[str, Callable[[GpuHost], object]]] = {
    "delete-vm": ("off", lambda host: host.delete_vm("vm")),
    "delete-vm of a running one": ("on", lambda host: host.delete_vm("vm")),
    "start-vm": ("off", lambda host: host.start_vm("vm")),
    "start-vm that runs": ("on", lambda host: host.start_vm("vm")),
    "stop-vm": ("on", lambda host: host.stop_vm("vm")),
    "stop-vm --force": ("on", lambda host: host.stop_vm("vm", force=True)),
    "reboot-vm": ("on", lambda host: host.reboot_vm("vm", force=True)),
    "set-vm of labels": ("on", lambda host: host.set_vm("vm", labels={"team": "cad"})),
    "set-vm of memory": ("off", lambda host: host.set_vm("vm", memory="3G")),
    "resize-disk": ("off", lambda host: host.resize_disk("vm", size="30GiB")),
    "refresh-vm": ("off", lambda host: host.refresh_vm("vm", "/new.qcow2")),
    "refresh-vm --drain": ("on", lambda host: host.refresh_vm("vm", "/new.qcow2", drain=True)),
    "detach-vgpu": ("off", lambda host: host.detach_vgpu("vm")),
    "set-vm of the profile that it has": ("off", lambda host: host.set_vm("vm", profile="L40S-4Q")),
    "ensure-vm": ("off", lambda host: host.ensure_vm("vm", state="present", profile="L40S-4Q")),
    "ensure-vm --state started": ("off", lambda host: host.ensure_vm("vm", state="started")),
    "ensure-vm --state absent": ("off", lambda host: host.ensure_vm("vm", state="absent")),
    "ensure-vm with labels": ("on", lambda host: host.ensure_vm("vm", labels={"team": "cad"})),
    "ensure-vm with memory": ("off", lambda host: host.ensure_vm("vm", state="stopped", memory="3GiB")),
}


def functions_read(host: SimulatedHost, act: Callable[[GpuHost], object]) -> set[str]:
    """Return the PCI functions of which an act reads a file."""
    functions: set[str] = set()

    def note(_number: int, call: str, args: tuple[object, ...]) -> None:
        match = _FUNCTION.match(str(args[0])) if call.startswith("sysfs.") else None
        functions.update(match.groups() if match is not None else ())

    act(GpuHost(Watch(before=note).watch(host.ports), CallSettings(5, NoProgress(), yes, lambda: False)))
    return functions


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_verb_reads_does_not_grow_with_the_gpus(tmp_path: Path, verb: str) -> None:
    state, act = VERBS[verb]
    counts = []
    for gpus in (FEW, MANY):
        host = open_sim_host(tmp_path / str(gpus), text=SCENARIO.format(gpus=gpus))
        create(host.ports, request("L40S-4Q", name="vm", image="/old.qcow2"))
        if state == "off":
            stop(host.ports, "vm")
        counts.append(len(functions_read(host.again(), act)))
    assert counts[0] == counts[1]


def test_a_vm_that_is_not_there_costs_no_read_of_a_gpu(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=SCENARIO.format(gpus=FEW))

    def ask(gpu_host: GpuHost) -> None:
        with pytest.raises(Exception, match="there is no VM nobody"):
            gpu_host.delete_vm("nobody")

    assert functions_read(host, ask) == set()
