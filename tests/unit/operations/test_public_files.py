# SPDX-License-Identifier: Apache-2.0
"""Files of hosts with other makers' cards, reduced from public ones: VMs of other programs, and listings of cards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.adopting import take
from tests.hosts import SimulatedHost, open_sim_host
from vgpuctl.config.foreign_vms.imported import VmFile
from vgpuctl.config.foreign_vms.recognize import parse_foreign_file
from vgpuctl.config.import_formats import parse_import
from vgpuctl.config.vm_spec import parse_vm_spec
from vgpuctl.host.local_host import open_local_host
from vgpuctl.makers import maker_of, usage_source
from vgpuctl.makers.gim import find_vf_options, parse_config
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.host import ImportedVmsResult
from vgpuctl.observe import ReadScope, observe_devices
from vgpuctl.operations.import_host import import_host
from vgpuctl.operations.import_vm import import_vms

DATA = Path(__file__).resolve().parents[2] / "data/makers"
CARD = re.compile(r"(\S+) .*\[(\w{4})\]: .*\[(\w{4}):(\w{4})\](?: \(rev \w+\))?\s+(\S+)")
MT_UUID = "c4f702ca-c69d-4d7d-a526-5fdcf78d3428"


def imported(host: SimulatedHost, name: str, change: tuple[str, str] = ("", "")) -> QueryResult[ImportedVmsResult]:
    """Import one of the files."""
    text = (DATA / name).read_text(encoding="utf-8").replace(*change)
    return import_vms(host.ports, [VmFile(name, parse_foreign_file(text, name))])


def test_vnpus_of_proxmox_on_arm(tmp_path: Path) -> None:
    result = imported(open_sim_host(tmp_path / "arm", "ascend"), "ascend-proxmox.conf")
    (vm,) = result.data.vms
    spec = parse_vm_spec(vm.text, "spec")
    assert (spec["name"], spec["vcpus"]) == ("npu-guest", 16)
    assert (vm.spec["memory"], vm.spec["profile"]) == ("32GiB", ["vnpu-vir04:2"])
    assert not any("aarch64" in line for line in result.warnings), "its system starts on this host"


@pytest.mark.parametrize(
    ("name", "change", "is_other"),
    [
        ("ascend-proxmox.conf", ("", ""), True),
        ("ascend-proxmox.conf", ("arch: aarch64\n", ""), False),
        ("amd-vf.xml", ("", ""), False),
        ("amd-vf.xml", ("arch='x86_64'", "arch='i686'"), False),
        ("amd-vf.xml", ("arch='x86_64'", "arch='aarch64'"), True),
    ],
)
def test_a_vm_for_other_cpus_is_named(tmp_path: Path, name: str, change: tuple[str, str], is_other: bool) -> None:
    result = imported(open_sim_host(tmp_path, "a100-40"), name, change)
    assert any("it is for aarch64, and VMs of this host have x86_64" in line for line in result.warnings) is is_other


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mthreads.xml", f"the vGPU {MT_UUID}: libvirt's XML does not say its profile"),
        ("gvt-g.xml", "a VM spec has display: for a vGPU's screen"),
        ("amd-vf.xml", "a VF of a GPU is mode: sriov and gpus: 1 here"),
        ("intel-xe-vf.xml", "a VF of a GPU is mode: sriov and gpus: 1 here"),
    ],
)
def test_what_a_definition_does_not_say_is_a_warning(tmp_path: Path, name: str, words: str) -> None:
    result = imported(open_sim_host(tmp_path, "a100-40"), name)
    assert any(words in line for line in result.warnings), result.warnings


def test_vms_of_other_makers_cards_are_adopted(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "mixed")
    for name, backend in (("amd-vf.xml", "sriov-vf"), ("intel-xe-vf.xml", "sriov-vf")):
        text = (DATA / name).read_text(encoding="utf-8").replace(" model='xe-vfio-pci'", "")
        host.ports.hypervisor.define(text)  # the schema of libvirt before 10.0 has no model
        (vgpu,) = take(host, re.findall("<name>(.*)</name>", text)[0]).data.vgpus
        assert vgpu.backend == backend


def test_a_vm_with_an_mdev_of_another_maker_is_adopted(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text="version: 1\ngpus: [{model: Ascend 310P, address: '0000:3b:00.0'}]\n")
    host.ports.sysfs.write("/sys/class/mdev_bus/0000:3b:00.0/mdev_supported_types/vnpu-vir02/create", MT_UUID)
    host.ports.hypervisor.define((DATA / "mthreads.xml").read_text(encoding="utf-8"))
    (vgpu,) = take(host, "mt-desktop").data.vgpus
    assert (vgpu.carrier, vgpu.profile, vgpu.backend) == (MT_UUID, "vnpu-vir02", "mdev-pf")


def captured_cards(root: Path) -> dict[str, list[str]]:
    """Write a captured tree with the cards of the listing, and return what that says of each, by address."""
    lines = (DATA / "cards.txt").read_text(encoding="utf-8").splitlines()
    cards = {match[1]: list(match.groups()[1:]) for match in map(CARD.match, lines) if match}
    assert len(cards) == len(lines) - 1
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    for address, (kind, vendor, device, driver) in cards.items():
        top = root / "sys/devices/pci0000:00" / address
        top.mkdir(parents=True)
        for name, text in (("class", f"0x{kind}00"), ("vendor", f"0x{vendor}"), ("device", f"0x{device}")):
            (top / name).write_text(f"{text}\n")
        if driver != "-":
            (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            (top / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        (root / "sys/bus/pci/devices" / address).symlink_to(f"../../../devices/pci0000:00/{address}")
    (root / "proc").mkdir()
    return cards


def test_cards_of_public_listings_are_gpus(tmp_path: Path) -> None:
    cards = captured_cards(tmp_path)
    ports = open_local_host(root=str(tmp_path))
    snapshot = observe_devices(ports, ReadScope(types=True), vms=(), status=ports.hypervisor.status())
    gpus: dict[str, Gpu] = {gpu.address: gpu for gpu in snapshot.gpus}
    assert gpus.keys() == cards.keys()
    for address, (_, vendor, device, driver) in cards.items():
        gpu = gpus[address]
        assert gpu.is_display_class
        assert (gpu.pci_id, gpu.driver) == (f"{vendor}:{device}", None if driver == "-" else driver)
    assert {gpu.address: (maker_of(gpu).name, usage_source(gpu)) for gpu in snapshot.gpus} == {
        "0000:08:00.0": ("MetaX", "mx-smi"),
        "0000:12:00.0": ("Moore Threads", "mthreads-gmi"),
        "0000:15:00.0": ("Iluvatar", "ixsmi"),
        "0000:17:00.0": ("Enflame", None),
        "0000:21:00.0": ("Kunlunxin", "kunlun-xpu-smi"),
        "0000:41:00.0": ("Cambricon", "cnmon"),
        "0000:66:00.0": ("Huawei Ascend", "npu-smi"),
        "0000:83:00.0": ("AMD", "amd-smi"),
        "0000:af:00.0": ("Iluvatar", None),
    }, "none without a driver, and VFIO's cards are nobody's to ask"


def test_the_simulated_ascend_offers_what_real_ones_did(tmp_path: Path) -> None:
    """Evanshenf/kunpeng-pve-arm64: two Atlas 300I Duo with driver 26.1.1 reported these for each empty function."""
    host = open_sim_host(tmp_path, "ascend")
    snapshot = observe_devices(host.ports, ReadScope(types=True), vms=(), status=host.ports.hypervisor.status())
    for gpu in snapshot.gpus:
        left = gpu.functions[0].available_instances
        assert {name: left[name] for name in ("vnpu-vir01", "vnpu-vir02", "vnpu-vir04")} == {
            "vnpu-vir01": 7, "vnpu-vir02": 3, "vnpu-vir04": 1
        }  # fmt: skip


def test_files_of_gim_as_others_write_them() -> None:
    with pytest.raises(ValueError, match="gim does not keep 'fb_option' there"):
        parse_config((DATA / "gim_config-s7150").read_text(encoding="utf-8"))
    assert parse_config((DATA / "gim_config-zstack").read_text(encoding="utf-8")).vf_counts == (8,)
    text = (DATA / "gim.conf").read_text(encoding="utf-8")
    assert find_vf_options([("gim.conf", text)], "") == ("gim.conf, line 1: options gim vf_num=1",)


def test_a_moore_threads_mdev_of_mdevctl_is_imported(tmp_path: Path) -> None:
    text = (DATA / "mdevctl-list.json").read_text(encoding="utf-8")
    result = import_host(open_sim_host(tmp_path, "mtt-s3000").ports, parse_import(text, "list", None))
    assert result.data.left_out == ()
    assert all(part in result.data.text for part in (MT_UUID, "0000:03:00.0", "profile: mtgpu-1101"))
