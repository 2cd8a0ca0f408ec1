# SPDX-License-Identifier: Apache-2.0
"""What each card offers, by PF, VF and mdev; a bad one never hides the others; PF files are read by name."""

from __future__ import annotations

import errno

import pytest

from tests.faults import Watch, failing
from tests.hosts import create, open_sim_host, request
from vgpuctl.errors import Failed
from vgpuctl.model.gpu import Backend, Gpu, GpuFunction, GpuMode
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.mdev import add_types
from vgpuctl.observe.vendor_vf import parse_creatable_types


def test_each_card_of_a_mixed_host_is_what_it_is(tmp_path):
    ports = open_sim_host(tmp_path, "mixed").ports
    observed = observe(ports, ReadScope())
    assert {g.address: (g.backend, str(g.mode)) for g in observed.gpus if g.is_display_class} == {
        "0000:17:00.0": (None, "unmanaged"),
        "0000:3b:00.0": ("vendor-vf", "vgpu"),
        "0000:5e:00.0": ("mdev-pf", "vgpu"),
        "0000:86:00.0": ("sriov-vf", "sriov"),
        "0000:af:00.0": ("sriov-vf", "sriov"),
        "0000:d8:00.0": ("passthrough", "passthrough"),
        "mtty": ("mdev-pf", "vgpu"),
    }
    one = observe(ports, ReadScope(gpu_addresses=frozenset({"0000:5e:00.0"})))
    assert [g.address for g in one.gpus] == ["0000:5e:00.0"]


def test_only_known_files_of_a_pf_are_read(tmp_path):
    """Some drivers act when a file is read: AMD's reset_gpu resets the card."""
    watch, read = Watch(), set()
    watch.before = lambda number, call, args: read.add(args[0]) if call == "sysfs.read" else None
    observe(watch.watch(open_sim_host(tmp_path, "mixed").ports), ReadScope(types=True, every_function=True))
    names = {path.rpartition("/")[2] for path in read if path.startswith("/sys/bus/pci/devices/")}
    assert names <= {
        "class",
        "vendor",
        "device",
        "numa_node",
        "sriov_totalvfs",
        "boot_vga",
        "current_vgpu_type",
        "creatable_vgpu_types",
        "name",
        "description",
        "available_instances",
    }


def test_vfs_beyond_the_pfs_slot_are_in_the_order_of_links(tmp_path):
    host = open_sim_host(tmp_path, text="version: 1\ngpus:\n  - {model: L40S, vfs: {total: 48, enabled: 48}}\n")
    (gpu,) = observe(host.ports, ReadScope()).gpus
    assert len(gpu.functions) == gpu.vfs_enabled == 48
    assert gpu.functions[0].address == "0000:3b:00.4"
    assert gpu.functions[-1].address == "0000:3b:06.3"


def test_a_vf_that_cannot_be_listed_is_named_and_the_others_stay(tmp_path):
    text = 'version: 1\ngpus:\n  - {model: A100}\nfaults:\n  - {on: sysfs-listdir, match: "*/0000:3b:00.5"}\n'
    (gpu,) = observe(open_sim_host(tmp_path, text=text).ports, ReadScope()).gpus
    assert len(gpu.functions) == 15
    assert "virtfn1 is ignored" in gpu.problems[0]
    assert gpu.vfs_enabled == 16


def test_another_parent_that_cannot_be_read_is_named_and_the_others_stay(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    mdev = "/sys/class/mdev_bus/mtty/c0ffee00-0000-4000-8000-000000000001"
    host.sim.sysfs.write("/sys/class/mdev_bus/mtty/mdev_supported_types/mtty-1/create", mdev.rpartition("/")[2])

    def fail(number, call, args):
        if call == "sysfs.readlink" and args[0] == f"{mdev}/mdev_type":
            raise OSError(5, "Input/output error", args[0])

    observed = observe(Watch(before=fail).watch(host.ports), ReadScope())
    assert "mtty" not in {g.address for g in observed.gpus}
    assert len(observed.gpus) == 6
    assert f"mtty is ignored: Input/output error ({mdev}/mdev_type)" in observed.warnings


def test_mdevs_that_cannot_be_listed_are_an_error_and_not_none(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    with pytest.raises(Failed) as raised:
        observe(failing(host.ports, 4), ReadScope())
    assert raised.value.facts["errno"] == 5


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


def test_what_a_vf_with_an_mdev_offers_is_known_without_asking_the_driver(tmp_path):
    ports = open_sim_host(tmp_path, "a16").ports
    vgpu = create(ports, request("A16-2Q"), start=False).data.vgpus[0]
    counts = []
    watch = Watch()
    watch.before = lambda number, call, args: counts.append(args[0]) if "available_instances" in str(args) else None
    gpu = observe(watch.watch(ports), ReadScope(types=True)).gpu(vgpu.gpu)
    taken = gpu.find_function(vgpu.function)
    free = next(f for f in gpu.functions if not f.mdevs)
    assert taken.available_instances == dict.fromkeys(free.available_instances, 0)
    assert any(free.path in path for path in counts)
    assert not any(taken.path in path for path in counts)


def test_a_parent_that_is_no_pci_device_is_a_gpu_of_its_own(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    done = create(host.ports, request("mtty-2"))
    assert done.data.vgpus[0].gpu == "mtty"
    observed = observe(host.ports, ReadScope(types=True))
    assert {t.profile for t in observed.gpu("mtty").types} == {"mtty-1", "mtty-2"}
    assert [v.profile for v in observed.vgpus_on("mtty")] == ["mtty-2"]


LINES = "468 : GRID A100-4C\n 469  :  NVIDIA RTX Pro 6000 Blackwell DC-4Q \n"
TWO_VFS = "version: 1\ngpus:\n  - {model: A100, vfs: {total: 2, enabled: 2}%s}\n"


@pytest.mark.parametrize("header", ["", "ID    : vGPU Name\n", "\n"])
def test_the_list_is_read_with_and_without_header_and_names_keep_their_spaces(header):
    assert parse_creatable_types(header + LINES) == {
        "468": "GRID A100-4C",
        "469": "NVIDIA RTX Pro 6000 Blackwell DC-4Q",
    }


@pytest.mark.parametrize("file", ["current_vgpu_type", "creatable_vgpu_types"])
def test_a_vf_that_cannot_be_read_is_named_and_the_other_still_offers(tmp_path, file):
    text = TWO_VFS % "" + f'faults:\n  - {{on: sysfs-read, match: "*00.4/nvidia/{file}"}}\n'
    (gpu,) = observe(open_sim_host(tmp_path, text=text).ports, ReadScope(types=True)).gpus
    assert "cannot be read" in gpu.functions[0].problem
    assert gpu.functions[1].available_instances["468"] == 1


def test_a_vf_whose_list_cannot_be_read_still_counts_as_taken(tmp_path):
    text = TWO_VFS % "" + 'faults:\n  - {on: sysfs-read, match: "*00.4/nvidia/creatable_vgpu_types"}\n'
    host = open_sim_host(tmp_path, text=text)
    host.ports.sysfs.write("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "468\n")
    observed = observe(host.ports, ReadScope(types=True))
    assert [v.carrier for v in observed.vgpus] == ["0000:3b:00.4"]


TEXT = """version: 1
kernel: "{kernel}"
nvidia: {{driver: "{driver}"}}
gpus:
  - model: A100
    mixed_size: true
    vgpus:
      - {{profile: A100-20C}}
      - {{profile: A100-8C}}
"""
KERNELS = {"vendor-vf": "6.8.0", "mdev-vf": "5.15.0"}


@pytest.mark.parametrize("form", KERNELS)
@pytest.mark.parametrize(("driver", "wanted"), [("590.48.01", [0, 20]), ("550.90.05", [None, None])])
def test_placements_of_unmanaged_vgpus_are_seen(tmp_path, form, driver, wanted):
    host = open_sim_host(tmp_path, text=TEXT.format(kernel=KERNELS[form], driver=driver))
    observed = observe(host.ports, ReadScope(types=True))
    assert observed.gpus[0].backend == form
    assert [v.placement_id for v in observed.vgpus] == wanted
    assert (observed.gpus[0].has_fixed_placements, observed.gpus[0].accepts_placements) == (
        wanted[0] is None,
        wanted[0] is not None,
    )


@pytest.mark.parametrize("form", KERNELS)
def test_one_size_has_no_placement(tmp_path, form):
    text = TEXT.format(kernel=KERNELS[form], driver="590.48.01").replace(
        "mixed_size: true", "vfs: {total: 4, enabled: 4}"
    )
    host = open_sim_host(tmp_path, text=text.replace("A100-20C", "A100-8C"))
    observed = observe(host.ports, ReadScope(types=True))
    assert [v.placement_id for v in observed.vgpus] == [None, None]
    assert not observed.gpus[0].has_fixed_placements


@pytest.mark.parametrize("form", KERNELS)
def test_only_a_vf_has_a_file_for_its_gpu_instance(tmp_path, form):
    text = TEXT.format(kernel=KERNELS[form], driver="590.48.01").replace("mixed_size: true", "mig: [1g.5gb]")
    host = open_sim_host(tmp_path, text=text[: text.index("    vgpus:")])
    gpu = observe(host.ports, ReadScope(types=True)).gpus[0]
    assert (gpu.has_fixed_placements, gpu.accepts_gpu_instances) == (form == "mdev-vf", form == "vendor-vf")
