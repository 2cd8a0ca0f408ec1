# SPDX-License-Identifier: Apache-2.0
"""Several whole GPUs in one VM: near each other, all or none, and given back at the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from tests.hosts import (
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    operation,
    picture,
    request,
    run_reconcile,
    start,
    stop,
)
from tests.layouts import FLEX
from tests.meanwhile import rebooted, unchanged
from tests.unit.operations.test_vgpus import DESK
from vgpuctl.config.host_spec import HostSpec
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.domain.domain_edit import pci_window_of
from vgpuctl.errors import InUse, LibvirtFailed, NoCapacity, NotFound, Refused, SpecDiffers
from vgpuctl.model.outcome import Outcome
from vgpuctl.operations import queries
from vgpuctl.operations.attach import attach, detach
from vgpuctl.operations.ensure_vm import ensure_vm
from vgpuctl.operations.ensure_vms import ensure_vms
from vgpuctl.operations.power import start_vm
from vgpuctl.operations.restore import restore_host

PCIE = ["1a", "1b", "3d", "3e", "9a", "9b", "bd", "be"]
HGX = ["0f", "10", "41", "44", "86", "87", "b8", "bb"]
DISPLAY_CARDS = """version: 1
gpus:
  - {model: RTX 4090, count: 2, driver: vfio-pci}
"""


def gpus(count: int, name: str = "vm", *addresses: str, **changes: object) -> VmRequest:
    named = tuple(f"0000:{bus}:00.0" for bus in addresses)
    sources = {"mode": "given", "gpus": "given"}
    return request(name=name, mode="passthrough", gpus=count, gpu=named, sources=sources, **changes)


def buses(host: SimulatedHost, name: str = "vm") -> list[str]:
    """Return the buses of the GPUs that a VM has."""
    return [v.gpu[5:7] for v in queries.show_vm(host.ports, context(), name).data.vgpus]


def add(host: SimulatedHost, count: int = 1, *addresses: str, name: str = "vm", dry_run: bool = False) -> Outcome:
    with operation(host.ports):
        wanted = gpus(count, name, *addresses)
        return attach(host.ports, context(dry_run=dry_run), wanted)


def remove(host: SimulatedHost, *buses: str, name: str = "vm") -> Outcome:
    addresses = [f"0000:{bus}:00.0" for bus in buses]
    with operation(host.ports):
        return detach(host.ports, context(wait_seconds=5), name, gpus=addresses)


@pytest.mark.parametrize(
    ("scenario", "count", "expected"),
    [
        ("h100-pcie-x8", 2, PCIE[:2]),
        ("h100-pcie-x8", 4, PCIE[:4]),
        ("h100-pcie-x8", 8, PCIE),
        ("hgx-h100", 2, HGX[:2]),
        ("hgx-h100", 8, HGX),
    ],
)
def test_they_are_near_and_the_guest_has_a_port_and_room_for_each(tmp_path: Path, scenario, count, expected) -> None:
    host = open_sim_host(tmp_path, scenario)
    done = create(host.ports, gpus(count))
    assert buses(host) == expected
    now = picture(host)
    assert [set(held) for held in now.running.values()] == [{f"0000:{bus}:00.0" for bus in expected}]
    assert set(now.claims) == {f"0000:{bus}:00.0" for bus in expected}
    xml = host.ports.hypervisor.find_domain("vm").xml
    assert len(etree.fromstring(xml).findall("devices/controller[@model='pcie-root-port']")) >= count + 5
    assert pci_window_of(xml) == 256 * count << 10
    assert any("NVSwitch" in note for note in done.notes) is (scenario == "hgx-h100")
    delete(host.ports, "vm")
    assert not picture(host).claims


@pytest.fixture
def host(tmp_path):
    return open_sim_host(tmp_path, "h100-pcie-x8")


def test_two_vms_leave_pairs_whole_and_the_ninth_gpu_is_refused_with_numbers(host: SimulatedHost) -> None:
    with unchanged(host), pytest.raises(NoCapacity, match="9 whole GPUs requested, but only 8 of 8"):
        create(host.ports, gpus(9))
    for name, count, expected in [("a", 1, PCIE[:1]), ("b", 2, PCIE[2:4]), ("c", 4, PCIE[4:]), ("d", 1, PCIE[1:2])]:
        create(host.ports, gpus(count, name))
        assert buses(host, name) == expected
    with unchanged(host), pytest.raises(NoCapacity, match="2 whole GPUs requested, but only 0 of 8") as raised:
        create(host.ports, gpus(2, "e"))
    assert "0000:3d:00.0: in use by b" in raised.value.facts["details"]
    assert (raised.value.facts["requested"], raised.value.facts["free"]) == (2, 0)


def test_named_addresses_are_all_given_or_the_one_in_use_is_named(host: SimulatedHost) -> None:
    create(host.ports, gpus(2, "a", "be", "1b"))
    assert buses(host, "a") == ["1b", "be"]
    with pytest.raises(InUse, match=r"0000:be:00\.0 is in use by a"):
        create(host.ports, gpus(2, "b", "bd", "be"))
    assert not set(picture(host).claims) & {"0000:bd:00.0"}


def test_a_start_that_fails_gives_every_gpu_back(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "vgpuctl/sim/scenarios/h100-pcie-x8.yaml").read_text()
    host = open_sim_host(tmp_path, text=text + "faults: [{on: start, code: 38, message: no power}]\n")
    with unchanged(host), pytest.raises(LibvirtFailed, match="no power"):
        create(host.ports, gpus(4))


def test_a_gpus_audio_function_goes_with_it(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=DISPLAY_CARDS)
    create(host.ports, gpus(2))
    functions = [f"0000:{bus}:00.{n}" for bus in ("3b", "3f") for n in (0, 1)]
    assert sorted(picture(host).claims) == functions
    shown = queries.show_vm(host.ports, context(), "vm").data.vgpus
    assert [v.companions for v in shown] == [("0000:3b:00.1",), ("0000:3f:00.1",)]
    stop(host.ports, "vm")
    remove(host, "3b")
    assert sorted(picture(host).claims) == functions[2:]
    add(host)
    assert sorted(picture(host).claims) == functions
    with operation(host.ports):
        detach(host.ports, context(wait_seconds=5), "vm", ["0000:3b:00.0"])  # detach-vgpu takes it along, too
    assert sorted(picture(host).claims) == functions[2:]


def test_after_a_reboot_the_vm_has_the_same_gpus(host: SimulatedHost) -> None:
    create(host.ports, gpus(4))
    host = rebooted(host)
    with operation(host.ports):
        restore_host(host.ports, context(), HostSpec(1))
    with pytest.raises(NoCapacity, match="only 4 of 8"):
        create(host.ports, gpus(5, "other"))
    start(host.ports, "vm")
    assert buses(host) == PCIE[:4]
    assert run_reconcile(host.ports).data.findings == ()


def test_a_vm_that_reserves_nothing_while_it_is_off_gets_others_when_its_own_are_taken(host: SimulatedHost) -> None:
    create(host.ports, gpus(2, reserve="running"))
    stop(host.ports, "vm")
    assert not picture(host).claims
    create(host.ports, gpus(1, "other", "1b"))
    start(host.ports, "vm")
    assert buses(host) == PCIE[2:4]
    assert run_reconcile(host.ports).data.findings == ()
    stop(host.ports, "vm")
    create(host.ports, gpus(6, "big"))
    with pytest.raises(NoCapacity, match="2 whole GPUs requested, but only 1 of 8"):
        start(host.ports, "vm")
    with operation(host.ports), pytest.raises(NoCapacity):
        start_vm(host.ports, context(dry_run=True, wait_seconds=0), "vm")


def test_a_clone_of_the_vm_does_not_get_its_gpus(host: SimulatedHost) -> None:
    create(host.ports, gpus(2), start=False)
    xml = host.ports.hypervisor.definition(queries.show_vm(host.ports, context(), "vm").data.uuid)
    root = etree.fromstring(xml)
    for tag, text in (("name", "copy"), ("uuid", "11111111-2222-4333-8444-555555555555")):
        root.find(tag).text = text
    host.ports.hypervisor.define(etree.tostring(root, encoding="unicode"))
    assert len(picture(host).claims) == 2
    delete(host.ports, "vm", keep_disks=True)
    assert not picture(host).claims
    assert "copy" in [vm.name for vm in queries.list_vms(host.ports, context()).data]


def test_several_vms_with_several_gpus_are_claimed_in_one_hold_or_not_at_all(host: SimulatedHost) -> None:
    with unchanged(host), operation(host.ports), pytest.raises(NoCapacity, match="2 fit now"):
        ensure_vms(host.ports, context(), gpus(3), ("a", "b", "c"), start=True, parallel=2)
    with operation(host.ports):
        ensure_vms(host.ports, context(), gpus(2), ("a", "b", "c"), start=True, parallel=2)
    assert [buses(host, name) for name in "abc"] == [PCIE[:2], PCIE[2:4], PCIE[4:6]]
    windows = {pci_window_of(host.ports.hypervisor.find_domain(name).xml) for name in "abc"}
    assert windows == {512 << 10}, "each has the room that its own two need"


def ensure(host: SimulatedHost, wanted: VmRequest) -> Outcome:
    with operation(host.ports):
        return ensure_vm(host.ports, context(confirm=lambda question, details: None), wanted, state="present")


def test_ensure_vm_compares_the_number_and_names_the_command_that_changes_it(host: SimulatedHost) -> None:
    assert ensure(host, gpus(2)).changed
    assert not ensure(host, gpus(2)).changed
    with pytest.raises(SpecDiffers, match="gpus: 2 -> 4") as raised:
        ensure(host, gpus(4))
    assert raised.value.hint == "vgpuctl attach-gpu vm --gpus 2 adds the missing GPUs while the VM is off"
    with pytest.raises(SpecDiffers, match="gpus: 2 -> 1") as raised:
        ensure(host, gpus(1))
    assert "vgpuctl detach-gpu vm --gpu ADDRESS" in str(raised.value.hint)
    stop(host.ports, "vm")
    add(host, 2)
    assert not ensure(host, gpus(4)).changed


BRIDGED = """version: 1
gpus:
  - {model: H100, vfs: {enabled: 0}, address: "0000:3b:00.0", numa_node: 0, nvlink: ["0000:5e:00.0"]}
  - {model: H100, vfs: {enabled: 0}, address: "0000:4b:00.0", numa_node: 0, nvlink: ["0000:6e:00.0"]}
  - {model: H100, vfs: {enabled: 0}, address: "0000:5e:00.0", numa_node: 0, nvlink: ["0000:3b:00.0"]}
  - {model: H100, vfs: {enabled: 0}, address: "0000:6e:00.0", numa_node: 0, nvlink: ["0000:4b:00.0"]}
"""


def test_gpus_with_an_nvlink_bridge_come_together_while_nvidias_driver_can_tell(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=BRIDGED)
    done = create(host.ports, gpus(2))
    assert buses(host) == ["3b", "5e"]
    assert not any("NVLink" in note for note in done.notes)
    create(host.ports, gpus(2, "other"))
    assert buses(host, "other") == ["4b", "6e"]


def test_gpus_are_added_beside_those_that_the_vm_has_with_a_larger_window(host: SimulatedHost) -> None:
    create(host.ports, gpus(1, "vm", "9b"), start=False)
    planned = add(host, dry_run=True)
    assert planned.steps[0].startswith("claim 0000:9a:00.0")
    done = add(host)
    assert done.steps == planned.steps
    assert buses(host) == ["9a", "9b"]
    add(host, 2)
    assert buses(host) == ["9a", "9b", "bd", "be"]
    assert pci_window_of(host.ports.hypervisor.find_domain("vm").xml) == 1 << 20
    start(host.ports, "vm")
    assert len(next(iter(picture(host).running.values()))) == 4


def test_a_gpu_that_is_removed_is_free_and_the_others_stay(host: SimulatedHost) -> None:
    create(host.ports, gpus(4))
    remove(host, "1a")
    assert buses(host) == PCIE[1:4]
    create(host.ports, gpus(1, "other"))
    assert buses(host, "other") == ["1a"]
    stop(host.ports, "vm")
    remove(host, "1b", "3d", "3e")
    assert buses(host) == []
    start(host.ports, "vm")
    assert sorted(picture(host).claims) == ["0000:1a:00.0"]
    with pytest.raises(NotFound, match=r"vm has no whole GPU 0000:1a:00\.0"):
        remove(host, "1a")


def test_a_vm_that_reserves_nothing_while_it_is_off_gets_them_at_its_start(host: SimulatedHost) -> None:
    create(host.ports, gpus(1, reserve="running"), start=False)
    add(host)
    assert not picture(host).claims
    create(host.ports, gpus(7, "other"))
    with pytest.raises(NoCapacity, match="2 whole GPUs requested, but only 1 of 8"):
        start(host.ports, "vm")
    delete(host.ports, "other")
    start(host.ports, "vm")
    assert len(picture(host).claims) == 2


def test_all_are_added_or_none(host: SimulatedHost) -> None:
    create(host.ports, gpus(4), start=False)
    create(host.ports, gpus(2, "other"), start=False)
    with unchanged(host), pytest.raises(NoCapacity, match="3 whole GPUs requested, but only 2 of 8"):
        add(host, 3)
    with unchanged(host), pytest.raises(InUse, match="in use by other"):
        add(host, 2, "bd", "9a")


def test_a_running_vm_and_one_with_vgpus_get_none(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "h100-pcie-x8")
    create(host.ports, gpus(1))
    with pytest.raises(Refused, match="only while it is off") as raised:
        add(host)
    assert raised.value.hint == "stop the VM first: vgpuctl stop-vm vm"
    mixed = open_sim_host(tmp_path / "mixed", "mixed")
    create(mixed.ports, request("A100-4C", name="vm"), start=False)
    with pytest.raises(Refused, match="either whole GPUs, or vGPUs") as raised:
        add(mixed)
    assert raised.value.hint == "vgpuctl detach-vgpu vm, then run the command again"


def test_a_vm_of_another_program_keeps_its_window_and_is_told_which_one_it_needs(host: SimulatedHost) -> None:
    host.ports.hypervisor.define(DESK % "")
    done = add(host, 2, name="desk")
    assert any("virsh edit desk" in note and "<pcihole64 unit='KiB'>536870912<" in note for note in done.notes)
    assert len(picture(host).claims) == 2
    remove(host, "1a", "1b", name="desk")
    assert not picture(host).claims
    assert run_reconcile(host.ports).data.findings == ()


def test_several_plain_vfs_are_all_given_or_none(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "mixed")
    create(host.ports, request(name="a", mode="sriov", gpus=5, gpu=FLEX))
    assert len(queries.show_vm(host.ports, context(), "a").data.vgpus) == 5
    with unchanged(host), pytest.raises(NoCapacity, match="4 plain VFs requested, but only 3 can be given now"):
        create(host.ports, request(name="b", mode="sriov", gpus=4, gpu=FLEX))
    delete(host.ports, "a")
    assert not picture(host).claims
