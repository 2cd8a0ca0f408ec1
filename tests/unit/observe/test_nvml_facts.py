# SPDX-License-Identifier: Apache-2.0
"""Facts of the driver, from NVML, its files, modprobe's files or the PCI database; without those they stay unknown."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from vgpuctl.errors import Failed
from vgpuctl.model.gpu import Backend, GpuMode
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.nvml_facts import driver_version, loaded_parameters, read_modprobe
from vgpuctl.operations.desired_state import ALL_FUNCTIONS_SCOPE
from vgpuctl.scheduler.registry_dword import MODULE_VERSION
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


class Tree:
    """Files of a host."""

    def __init__(self, files, closed=None):
        self.files, self.closed = files, closed

    def listdir(self, path):
        if path == self.closed:
            raise PermissionError(13, "Permission denied", path)
        names = sorted({name[len(path) + 1 :].partition("/")[0] for name in self.files if name.startswith(f"{path}/")})
        if not names:
            raise FileNotFoundError(2, "No such file or directory", path)
        return tuple(names)

    def read(self, path):
        if path == self.closed:
            raise PermissionError(13, "Permission denied", path)
        return self.files[path]


FILES = {
    "/etc/modprobe.d/b.conf": "etc b",
    "/etc/modprobe.d/README": "no",
    "/usr/lib/modprobe.d/b.conf": "hidden",
    "/usr/lib/modprobe.d/a.conf": "lib a",
}


def test_the_first_directory_hides_namesakes_of_the_others(tmp_path):
    ports = replace(open_sim_host(tmp_path).ports, sysfs=Tree(FILES))
    result = [(f.path, f.text) for f in read_modprobe(ports)]
    assert result == [("/usr/lib/modprobe.d/a.conf", "lib a"), ("/etc/modprobe.d/b.conf", "etc b")]


@pytest.mark.parametrize("closed", ["/etc/modprobe.d", "/etc/modprobe.d/b.conf"])
def test_an_unreadable_file_is_not_empty(tmp_path, closed):
    ports = replace(open_sim_host(tmp_path).ports, sysfs=Tree(FILES, closed))
    with pytest.raises(Failed, match=f"{closed} cannot be read"):
        read_modprobe(ports)


def test_the_drivers_version_comes_from_the_module_when_nvml_is_silent(tmp_path):
    for nvml in ("present", "absent"):
        text = f'version: 1\nnvidia: {{driver: "535.161.05", nvml: {nvml}}}\ngpus: [{{model: A100}}]\n'
        host = open_sim_host(tmp_path / nvml, text=text)
        assert driver_version(host.ports, observe(host.ports, ALL_FUNCTIONS_SCOPE)) == "535.161.05"
        assert 'RegistryDwords: ""' in (loaded_parameters(host.ports) or "")
    bare = open_sim_host(tmp_path / "bare", "empty")
    assert driver_version(bare.ports, observe(bare.ports, ALL_FUNCTIONS_SCOPE)) is None
    assert loaded_parameters(bare.ports) is None


class WithoutModuleVersion:
    """The files of a host with modules that show no version."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def read(self, path):
        if path == MODULE_VERSION:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self._inner.read(path)


def test_the_drivers_version_comes_from_proc_when_the_module_is_silent_too(tmp_path):
    text = 'version: 1\nnvidia: {driver: "535.161.05", nvml: absent}\ngpus: [{model: A100}]\n'
    host = open_sim_host(tmp_path, text=text)
    ports = replace(host.ports, sysfs=WithoutModuleVersion(host.ports.sysfs))
    snapshot = observe(ports, ReadScope(types=True))
    assert driver_version(ports, snapshot) == "535.161.05"
    assert snapshot.gpus[0].has_single_type, "a driver before 550 allows one type at a time"
