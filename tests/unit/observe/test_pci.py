# SPDX-License-Identifier: Apache-2.0
"""What each card offers is decided card by card; a bad one never hides the others; PF files are read by name."""

from __future__ import annotations

import pytest

from tests.faults import Watch, failing
from tests.hosts import open_sim_host
from vgpuctl.errors import Failed
from vgpuctl.observe import ReadScope, observe


def test_each_card_of_a_mixed_host_is_what_it_is(tmp_path):
    observed = observe(open_sim_host(tmp_path, "mixed").ports, ReadScope())
    assert {g.address: (g.backend, str(g.mode)) for g in observed.gpus if g.is_display_class} == {
        "0000:17:00.0": (None, "unmanaged"),
        "0000:3b:00.0": ("vendor-vf", "vgpu"),
        "0000:5e:00.0": ("mdev-pf", "vgpu"),
        "0000:86:00.0": ("sriov-vf", "sriov"),
        "0000:af:00.0": ("sriov-vf", "sriov"),
        "0000:d8:00.0": ("passthrough", "passthrough"),
        "mtty": ("mdev-pf", "vgpu"),
    }


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


def test_only_a_requested_gpu_is_read(tmp_path):
    observed = observe(open_sim_host(tmp_path, "mixed").ports, ReadScope(gpu_addresses=frozenset({"0000:5e:00.0"})))
    assert [g.address for g in observed.gpus] == ["0000:5e:00.0"]
