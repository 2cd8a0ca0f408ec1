# SPDX-License-Identifier: Apache-2.0
"""Names and numbers that only NVML, the driver or the PCI database know; without them nothing is guessed."""

from __future__ import annotations

import pytest

from tests.worlds import open_host
from vgpuctl.engine.observe import Want, observe
from vgpuctl.model.gpu import Backend, Mode
from vgpuctl.value import replace

TEXT = "version: 1\nnvidia: {nvml: %s}\ngpus:\n  - {model: A100}\n"
A16 = 'version: 1\nkernel: 5.14.0-427.el9_4.x86_64\nnvidia: {driver: "550.90.05"}\ngpus:\n  - {model: A16}\n'
IDS = "8086  Intel Corporation\n\t56c0  Flex 170\n10de  NVIDIA Corporation\n\t20f1  GA100 [A100 PCIe 40GB]\n"


def test_nvml_gives_the_size_and_the_most_of_each_type(tmp_path):
    (gpu,) = observe(open_host(tmp_path).world, Want(types=True)).gpus
    found = gpu.type_of("468")
    assert (gpu.framebuffer_mib, found.framebuffer_mib, found.max_per_gpu) == (40960, 4096, 10)


def test_nvml_tells_what_a_type_needs_of_mig_and_mixed_sizes_also_of_mdevs_by_their_number(tmp_path):
    a16 = open_host(tmp_path / "a16", text=A16).world
    a16.nvml.set_mixed_size(observe(a16, Want()).gpus[0].address, enabled=True)
    (gpu, *_) = observe(a16, Want(types=True)).gpus
    assert gpu.backend is Backend.MDEV_VF
    whole = next(t for t in gpu.types if t.profile == "A16-16Q")
    assert (whole.placement_ids, whole.placement_size, whole.gi_profile_id) == ((0,), 16, None)
    look = observe(open_host(tmp_path / "h100", "h100-mig").world, Want(types=True))
    one = next(t for t in look.gpus[0].types if t.profile == "H100-1-10C")
    assert (one.gi_profile_id, one.max_per_gi) == (19, 1)
    assert [g.mode for g in look.gpus] == [Mode.MIG_VGPU, Mode.VGPU]


@pytest.mark.parametrize("reason", ["absent", "too-old"])
def test_without_nvml_size_and_most_stay_unknown_and_the_reason_is_kept(tmp_path, reason):
    look = observe(open_host(tmp_path, text=TEXT % reason).world, Want(types=True))
    found = look.gpus[0].type_of("468")
    assert (look.gpus[0].framebuffer_mib, found.framebuffer_mib, found.max_per_gpu) == (None, None, None)
    assert (look.nvml.available, look.nvml.reason) == (False, reason)


class _WithIds:
    def __init__(self, inner):
        self._inner, self.reads = inner, 0

    def read(self, path):
        if path.endswith("/pci.ids"):
            self.reads += 1
            return IDS
        if path.startswith("/proc/driver/nvidia"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return self._inner.read(path)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_the_pci_database_names_what_nvml_did_not_and_is_read_once(tmp_path):
    host = open_host(tmp_path, "mixed")
    sysfs = _WithIds(host.world.sysfs)
    look = observe(replace(host.world, sysfs=sysfs), Want())
    assert look.gpu("0000:86:00.0").model == "Intel Corporation Flex 170"
    assert sysfs.reads == 1


def test_names_are_not_looked_for_when_nobody_wants_them(tmp_path):
    host = open_host(tmp_path, "mixed")
    sysfs = _WithIds(host.world.sysfs)
    observe(replace(host.world, sysfs=sysfs), Want(models=False))
    assert sysfs.reads == 0
