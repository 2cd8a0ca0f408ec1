# SPDX-License-Identifier: Apache-2.0
"""Names and numbers from NVML, the driver or the PCI database; without those they stay unknown."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from vgpuctl.model.gpu import Backend, GpuMode
from vgpuctl.observe import ReadScope, observe
from vgpuctl.value import replace

TEXT = "version: 1\nnvidia: {nvml: %s}\ngpus:\n  - {model: A100}\n"
A16 = 'version: 1\nkernel: 5.14.0-427.el9_4.x86_64\nnvidia: {driver: "550.90.05"}\ngpus:\n  - {model: A16}\n'
IDS = "8086  Intel Corporation\n\t56c0  Flex 170\n10de  NVIDIA Corporation\n\t20f1  GA100 [A100 PCIe 40GB]\n"


def test_nvml_gives_size_and_maximum_of_each_type(tmp_path):
    (gpu,) = observe(open_sim_host(tmp_path).ports, ReadScope(types=True)).gpus
    result = gpu.find_type("468")
    assert (gpu.framebuffer_mib, result.framebuffer_mib, result.max_per_gpu) == (40960, 4096, 10)


def test_nvml_gives_mig_and_placement_needs_of_types_and_mdevs(tmp_path):
    a16 = open_sim_host(tmp_path / "a16", text=A16).ports
    a16.nvml.set_mixed_size(observe(a16, ReadScope()).gpus[0].address, enabled=True)
    (gpu, *_) = observe(a16, ReadScope(types=True)).gpus
    assert gpu.backend is Backend.MDEV_VF
    whole = next(t for t in gpu.types if t.profile == "A16-16Q")
    assert (whole.placement_ids, whole.placement_size, whole.gi_profile_id) == ((0,), 16, None)
    observed = observe(open_sim_host(tmp_path / "h100", "h100-mig").ports, ReadScope(types=True))
    one = next(t for t in observed.gpus[0].types if t.profile == "H100-1-10C")
    assert (one.gi_profile_id, one.max_per_gi) == (19, 1)
    assert [g.mode for g in observed.gpus] == [GpuMode.MIG_VGPU, GpuMode.VGPU]


@pytest.mark.parametrize("reason", ["absent", "too-old"])
def test_without_nvml_size_and_maximum_are_unknown_with_a_reason(tmp_path, reason):
    observed = observe(open_sim_host(tmp_path, text=TEXT % reason).ports, ReadScope(types=True))
    result = observed.gpus[0].find_type("468")
    assert (observed.gpus[0].framebuffer_mib, result.framebuffer_mib, result.max_per_gpu) == (None, None, None)
    assert (observed.nvml.available, observed.nvml.reason) == (False, reason)


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
    host = open_sim_host(tmp_path, "mixed")
    sysfs = _WithIds(host.ports.sysfs)
    observed = observe(replace(host.ports, sysfs=sysfs), ReadScope())
    assert observed.gpu("0000:86:00.0").model == "Intel Corporation Flex 170"
    assert sysfs.reads == 1


def test_model_names_are_read_only_if_needed(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    sysfs = _WithIds(host.ports.sysfs)
    observe(replace(host.ports, sysfs=sysfs), ReadScope(models=False))
    assert sysfs.reads == 0


TWO_A40 = "version: 1\ngpus:\n  - {model: A40}\n  - {model: A40, driver: vfio-pci}\n"


@pytest.mark.parametrize("text", [TWO_A40, "version: 1\ngpus:\n  - {model: A40, driver: vfio-pci}\n"])
@pytest.mark.parametrize("models", [True, False])
def test_a_gpu_that_is_passed_through_has_its_name_and_memory(tmp_path, text, models):
    host = open_sim_host(tmp_path, text=text)
    gpu = observe(host.ports, ReadScope(models=models)).gpus[-1]
    assert (gpu.driver, gpu.model, gpu.framebuffer_mib) == ("vfio-pci", "NVIDIA A40", 49152)
    assert all(gpu.has_model_name(name) for name in ("A40", "nvidia a40", "10de:2235"))
    assert not gpu.has_model_name("A4")


def test_an_unknown_gpu_keeps_its_pci_ids(tmp_path):
    text = "version: 1\ngpus:\n  - {model: A40, device_id: 'fffe', driver: vfio-pci}\n"
    (gpu,) = observe(open_sim_host(tmp_path, text=text).ports, ReadScope()).gpus
    assert (gpu.model, gpu.framebuffer_mib) == ("10de:fffe", None)


def test_the_memory_of_a_gpu_that_makes_vgpus_is_not_guessed(tmp_path):
    (gpu,) = observe(open_sim_host(tmp_path, text=TEXT % "absent").ports, ReadScope()).gpus
    assert (gpu.backend, gpu.framebuffer_mib) == (Backend.VENDOR_VF, None)
