# SPDX-License-Identifier: Apache-2.0
"""Mappings of a cluster of Proxmox: which devices of which nodes a VM's mapping means."""

from __future__ import annotations

import pytest

from tests import foreign_vms as texts
from vgpuctl.config.foreign_vms.imported import ImportedVm, MappedDevice, VmFile, merge_files
from vgpuctl.config.foreign_vms.recognize import parse_foreign_file

MEANT = "0000:01:00.0 of pve1 (10de:2235) or 0000:81:00.0;0000:81:00.1 of pve2 (10de:2235)"


def merged(device: str, *mappings: str) -> ImportedVm:
    """Return the VM of the file vm, with files of mappings m0, m1."""
    conf = f"memory: 1024\ncores: 1\nhostpci0: {device}\n"
    named = {"vm": conf, **{f"m{number}": text for number, text in enumerate(mappings)}}
    pairs, left_out = merge_files(tuple(VmFile(name, parse_foreign_file(text, name)) for name, text in named.items()))
    assert left_out == ()
    ((_, vm),) = pairs
    return vm


def test_the_file_of_mappings_is_read():
    file = parse_foreign_file(texts.PROXMOX_MAPPING, "f")
    assert (file.format, file.vms) == ("Proxmox VE's mappings", ())
    assert [(mapping.name, mapping.position, len(mapping.devices)) for mapping in file.mappings] == [
        ("a40", "f:1", 2), ("nic", "f:8", 1)
    ]  # fmt: skip
    assert file.mappings[0].devices[0] == MappedDevice("pve1", "0000:01:00.0", "10de:2235")


def test_a_note_says_which_devices_of_which_nodes_a_mapping_means():
    vgpu = merged("mapping=a40,mdev=nvidia-468,pcie=1", texts.PROXMOX_MAPPING)
    assert vgpu.notes == (f"vm:3: the mapping a40 means there m0:1: {MEANT}",)
    assert ([gpu.type_id for gpu in vgpu.gpus], vgpu.left_out) == (["nvidia-468"], ())
    whole = merged("mapping=a40", texts.PROXMOX_MAPPING)
    assert (whole.notes, whole.left_out, [gpu.is_whole for gpu in whole.gpus]) == (vgpu.notes, (), [True])
    twice = merged("mapping=a40", texts.PROXMOX_MAPPING, texts.PROXMOX_MAPPING)
    assert twice.notes == (f"vm:3: the mapping a40 means there m0:1: {MEANT}; m1:1: {MEANT}",)


def test_without_its_file_the_warning_has_the_command_that_prints_it():
    for device, assumed in (
        ("mapping=a40,mdev=nvidia-468", ""),
        ("mapping=a40", "it is assumed to be a GPU; "),
    ):
        vm = merged(device)
        assert vm.left_out == (
            f"vm:3: the mapping a40, whose devices are in another file: {assumed}give what cat "
            "/etc/pve/mapping/pci.cfg prints on a node of that cluster",
        )
        assert len(vm.gpus) == 1
    (other,) = merged("mapping=a100", texts.PROXMOX_MAPPING).left_out
    assert other.startswith("vm:3: the mapping a100, which none of the files has: it is assumed to be a GPU; give")
    assert merged("0000:01:00.0", texts.PROXMOX_MAPPING).notes == ()


def test_a_mapping_of_another_device_is_no_gpu():
    vm = merged("mapping=nic", texts.PROXMOX_MAPPING)
    assert vm.gpus == ()
    assert vm.left_out == ("vm:3: the mapping nic means no GPU: m0:8: 0000:3b:00.0 of pve1 (15b3:1017)",)
    unknown = merged("mapping=nic", texts.PROXMOX_MAPPING.replace("id=15b3:1017,", ""))
    assert (len(unknown.gpus), unknown.left_out) == (1, ())
    assert unknown.notes == ("vm:3: the mapping nic means there m0:8: 0000:3b:00.0 of pve1",)


@pytest.mark.parametrize(("ids", "device", "gpus"), [
    (("8086:1521",), "mapping=x", 0), (("8086:1521", "15b3:1017"), "mapping=x", 0), (("8086:3E92",), "mapping=x", 1),
    (("8086:1521", "10de:2235"), "mapping=x", 1), (("8086:1521", ""), "mapping=x", 1), (("1002:7460",), "mapping=x", 1),
    (("8086:1521",), "mapping=x,mdev=i915-GVTg_V5_4", 1),
])  # fmt: skip
def test_a_mapping_of_a_maker_that_makes_network_cards_is_a_gpu_only_by_its_model(ids, device, gpus):
    lines = "".join(f"\tmap id={pci_id},node=pve1,path=0000:3b:00.0,iommugroup=7\n" for pci_id in ids)
    vm = merged(device, f"x\n\tdescription ports\n{lines}")
    assert len(vm.gpus) == gpus
    if not gpus:
        (line,) = vm.left_out
        assert line.startswith(f"vm:3: the mapping x means there m0:1: 0000:3b:00.0 of pve1 ({ids[0]})")
        assert "may be a network card and does not count: if it is a GPU, write mode: passthrough and" in line


def test_a_mapping_with_many_nodes_or_none_is_one_sentence():
    lines = "".join(f" map node=n{number},path=01:00\n" for number in range(100))
    assert merged("mapping=a", f"a\n{lines}b\n").notes == (
        "vm:3: the mapping a means there m0:1: 01:00 of n0 or 01:00 of n1 or 01:00 of n2 or 01:00 of n3 and 96 more",
    )
    assert merged("mapping=b", f"a\n{lines}b\n").notes == ("vm:3: the mapping b means there m0:102: no device",)
