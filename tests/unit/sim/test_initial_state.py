# SPDX-License-Identifier: Apache-2.0
"""The initial state: unmanaged vGPUs and VMs."""

from __future__ import annotations

import pytest

from tests.unit.sim.hosts import GPU, MDEV, PF, MakeHost, available, vf
from tests.unit.sim.test_sriov import driver
from vgpuctl.errors import InvalidInput
from vgpuctl.model.vm import VmState
from vgpuctl.sim import domain_xml


def test_unmanaged_mdevs_with_or_without_vm(make: MakeHost) -> None:
    host = make(
        "gpus:\n  - model: T4\n    vgpus:\n"
        "      - {profile: T4-4Q, count: 2, vm: theirs}\n"
        "      - {profile: nvidia-232, uuid: 4B20D080-1b54-4048-85b3-a6a62d165c01}\n"
    )
    assert len(host.sysfs.listdir(MDEV)) == 3
    assert "4b20d080-1b54-4048-85b3-a6a62d165c01" in host.sysfs.listdir(MDEV)
    assert available(host, GPU, "nvidia-232") == 1
    (record,) = host.hypervisor.domains()
    assert (record.name, record.state, record.xml.count("<hostdev")) == ("theirs", VmState.RUNNING, 2)
    domain_xml.validate(domain_xml.parse(record.xml))
    assert "vgpuctl" not in record.xml
    host.reboot()
    assert host.sysfs.listdir(MDEV) == ()
    assert host.hypervisor.domains()[0].state is VmState.STOPPED


def test_unmanaged_vendor_vgpus_take_free_vfs(make: MakeHost) -> None:
    host = make(
        "gpus: [{model: A100, vgpus: [{profile: A100-4C, count: 2}, {profile: A100-4C, vm: v, running: false}]}]\n"
    )
    types = [host.sysfs.read(f"{vf(n)}/nvidia/current_vgpu_type").strip() for n in range(4)]
    assert types == ["468", "468", "468", "0"]
    (record,) = host.hypervisor.domains()
    assert record.state is VmState.STOPPED
    assert 'managed="no"' in record.xml
    host.hypervisor.start(record.uuid)


def test_whole_devices_belong_to_a_vm(make: MakeHost) -> None:
    host = make(
        "gpus:\n"
        "  - {model: Flex 170, vfs: {total: 4, enabled: 2}, vgpus: [{vm: a}, {vm: b}]}\n"
        "  - {model: RTX 4090, driver: nouveau, companions: [], vgpus: [{vm: a}]}\n"
    )
    assert driver(host, "0000:3b:00.4") == "vfio-pci"
    assert driver(host, "0000:3f:00.0") == "vfio-pci"
    for record in host.hypervisor.domains():
        host.hypervisor.destroy(record.uuid)
    assert driver(host, "0000:3f:00.0") == "nouveau"
    assert host.sysfs.listdir(PF)
    for record in host.hypervisor.domains():
        host.hypervisor.start(record.uuid)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{model: T4, vgpus: [{profile: T4-16Q, count: 2}]}", "no room for T4-16Q"),
        ("{model: T4, vgpus: [{profile: T4-8Q}, {profile: T4-4Q}]}", "no room for T4-4Q"),
        ("{model: T4, vgpus: [{profile: A100-4C}]}", "has no profile 'A100-4C'; it has"),
        ("{model: T4, vgpus: [{}]}", "'profile' is missing"),
        ("{model: A100, vfs: {enabled: 0}, vgpus: [{profile: A100-4C}]}", "no room"),
        ("{model: RTX 4090, vgpus: [{}]}", "name the VM that has the device"),
        ("{model: RTX 4090, vgpus: [{vm: a}, {vm: b}]}", "no free device left"),
    ],
)
def test_a_scenario_cannot_hold_what_a_driver_refuses(make: MakeHost, text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make(f"gpus: [{text}]\n")
