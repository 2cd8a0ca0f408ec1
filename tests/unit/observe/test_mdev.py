# SPDX-License-Identifier: Apache-2.0
"""mdev types of every maker, directories that are no types, and parents that are no PCI device."""

from __future__ import annotations

import errno

import pytest

from tests.hosts import create, open_sim_host, request
from vgpuctl.model.gpu import Backend, Gpu, GpuFunction, GpuMode
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.mdev import add_types

P = "/p"
GPU = Gpu("0000:3b:00.0", P, "T4", "nvidia", Backend.MDEV_PF, GpuMode.VGPU)


class Tree:
    """A type directory of given files; everything else is not there."""

    def __init__(self, types):
        self.types, self.reads = types, []

    def listdir(self, path):
        if path == f"{P}/mdev_supported_types":
            return tuple(self.types)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def read(self, path):
        self.reads.append(path)
        _, _, type_id, name = path.rsplit("/", 3)
        if name not in self.types[type_id]:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self.types[type_id][name]


def read(types, want=None):
    tree = Tree(types)
    gpu = add_types(tree, GPU, (GpuFunction(GPU.address, P),), ((),), want or ReadScope(types=True))
    return gpu, tree


@pytest.mark.parametrize(
    ("type_id", "name", "description", "profile", "framebuffer", "most"),
    [
        ("nvidia-231", "GRID T4-2Q", "num_heads=4, framebuffer=2048M, max_instance=8", "T4-2Q", 2048, 8),
        ("i915-GVTg_V5_4", None, "low_gm_size: 128MB\nhigh_gm_size: 512MB\nfence: 4\n", "i915-GVTg_V5_4", 512, None),
        ("vnpu-vir02", None, "type name: vir02\naicore num: 2\nmemory size: 6GB\n", "vnpu-vir02", 6144, None),
        ("other-1", "One", "memory: 8 GB\n", "other-1", None, None),
        ("mtty-2", "Dual port serial", None, "mtty-2", None, None),
    ],
)
def test_every_makers_type_is_understood(type_id, name, description, profile, framebuffer, most):
    files = {"available_instances": "3\n", "name": name, "description": description}
    gpu, _ = read({type_id: {k: v for k, v in files.items() if v is not None}})
    (result,) = gpu.types
    assert (result.profile, result.framebuffer_mib, result.max_per_gpu) == (profile, framebuffer, most)
    assert gpu.functions[0].available_instances == {type_id: 3}


def test_directories_of_a_half_initialised_vf_are_no_types():
    gpu, tree = read({"pci-700": {}, "vfio-pci-700": {}})
    assert gpu.types == ()
    assert "still initializing it" in gpu.functions[0].problem
    assert not tree.reads


def test_a_type_that_cannot_be_counted_makes_its_function_a_problem():
    gpu, _ = read({"nvidia-231": {"name": "GRID T4-2Q", "available_instances": "many\n"}})
    assert "cannot be read" in gpu.functions[0].problem
    assert gpu.functions[0].available_instances is None


def test_without_wanting_types_none_is_read():
    _, tree = read({"nvidia-231": {}}, ReadScope())
    assert not tree.reads


def test_a_parent_that_is_no_pci_device_is_a_gpu_of_its_own(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    done = create(host.ports, request("mtty-2"))
    assert done.data.vgpus[0].gpu == "mtty"
    observed = observe(host.ports, ReadScope(types=True))
    assert {t.profile for t in observed.gpu("mtty").types} == {"mtty-1", "mtty-2"}
    assert [v.profile for v in observed.vgpus_on("mtty")] == ["mtty-2"]
