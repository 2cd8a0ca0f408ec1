# SPDX-License-Identifier: Apache-2.0
"""What a large host costs: 16 GPUs, 32 VFs each, 40 mdev types on every VF, counted read by read."""

from __future__ import annotations

import errno
import time
from collections import Counter
from contextlib import contextmanager
from typing import Any

from tests.hosts import create, open_sim_host, request
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

    class Claims:
        @contextmanager
        def lock(self, wait_seconds: float) -> Any:
            with host.ports.claims.lock(wait_seconds):
                yield

        def __getattr__(self, name: str) -> Any:
            return getattr(host.ports.claims, name)

    class Counting:
        def __init__(self, name: str, inner: Any) -> None:
            self._name, self._inner = name, inner

        def __getattr__(self, name: str) -> Any:
            if host.ports.claims.is_locked:
                under[f"{self._name}.{name}"] += 1
            return getattr(self._inner, name)

    ports = {name: Counting(name, getattr(host.ports, name)) for name in ("sysfs", "nvml", "hypervisor", "storage")}
    create(replace(host.ports, claims=Claims(), **ports), request("L40S-12Q"))
    assert set(under) <= {"sysfs.read", "sysfs.listdir", "sysfs.readlink"}
    assert 0 < under["sysfs.read"] <= 200
