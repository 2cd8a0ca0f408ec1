# SPDX-License-Identifier: Apache-2.0
"""A definition that another program changed: what is missing is put back, what differs refuses the start.

Every domain is read; an invalid one is named and does not affect the others.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, context, create, open_sim_host, operation, request, run_reconcile, start, stop
from vgpuctl.errors import Refused, VerifyFailed, VgpuctlError
from vgpuctl.hook import run as hook
from vgpuctl.model.vm import VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.ensure_vm import ensure_vm
from vgpuctl.operations.queries import list_vms
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

BACKENDS = [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")]
HOSTDEV = re.compile(r"\s*<hostdev .*?</hostdev>", re.DOTALL)


def xml_of(ports: Host, name: str = "vm") -> str:
    domain = ports.hypervisor.find_domain(name)
    return domain.xml


def edit(ports: Host, pattern: str | re.Pattern[str], text: str, count: int = 1) -> None:
    """Change a definition as `virsh edit` does."""
    domain = ports.hypervisor.find_domain("vm")
    changed = re.sub(pattern, text, domain.xml, count=count, flags=0 if isinstance(pattern, re.Pattern) else re.DOTALL)
    assert changed != domain.xml
    ports.hypervisor.redefine(domain.uuid, changed)


def device_of(xml: str) -> str:
    """The hostdev without the guest's address, which libvirt gives it."""
    return re.sub(r"<address type='pci'[^>]*>", "", HOSTDEV.findall(xml)[0]).strip()


def live_hostdevs(ports: Host) -> int:
    domain = ports.hypervisor.find_domain("vm")
    return 0 if domain is None else (domain.live_xml or "").count("<hostdev")


def with_vm(tmp_path: Path, scenario: str = "a100-40", profile: str = "A100-4C", **more: object) -> SimulatedHost:
    host = open_sim_host(tmp_path, scenario)
    create(host.ports, request(profile, name="vm", **more), start=False)
    return host


def without_device(tmp_path: Path, *how: str, **more: object) -> SimulatedHost:
    """Return a host with a VM from whose definition another program removed the vGPU."""
    host = with_vm(tmp_path, *how, **more)
    edit(host.ports, HOSTDEV, "")
    return host


@pytest.mark.parametrize(("scenario", "profile"), BACKENDS)
@pytest.mark.parametrize("reserve", ["always", "running"])
def test_a_lost_device_is_put_back(tmp_path, scenario, profile, reserve):
    host = with_vm(tmp_path, scenario, profile, reserve=reserve)
    before = xml_of(host.ports)
    edit(host.ports, HOSTDEV, "")
    with pytest.raises(Refused, match=r"lacks .* another program removed it") as raised:
        hook.prepare(host.ports, xml_of(host.ports))
    assert raised.value.hint == "vgpuctl start-vm vm puts it back"
    done = start(host.ports, "vm")
    assert any("put back" in line for line in done.steps)
    assert live_hostdevs(host.ports) == 1
    assert device_of(xml_of(host.ports)) == device_of(before)
    assert all(v.attached for v in done.data.vgpus)


@pytest.mark.parametrize("number", [1, 2])
def test_one_of_two_is_put_back_with_the_screen_of_the_first(tmp_path, number):
    host = open_sim_host(tmp_path, "t4")
    create(host.ports, request("T4-2Q", 2, name="vm", display=True), start=False)
    edit(host.ports, HOSTDEV, "", count=number)
    start(host.ports, "vm")
    assert live_hostdevs(host.ports) == 2
    assert xml_of(host.ports).count("display='on'") == 1


@pytest.mark.parametrize(
    ("pattern", "text", "message"),
    [
        ("managed='no'", "managed='yes'", "managed='yes': libvirt would unbind it"),
        ("function='0x4'/>\n?\\s*</source>", "function='0x5'/></source>", "has 0000:3b:00.5 where its record has"),
    ],
)
def test_a_changed_function_refuses_the_start(tmp_path, pattern, text, message):
    host = with_vm(tmp_path)
    edit(host.ports, pattern, text)
    xml = xml_of(host.ports)
    for act in (lambda: start(host.ports, "vm"), lambda: hook.prepare(host.ports, xml)):
        with pytest.raises(Refused, match=re.escape(message)) as raised:
            act()
        assert raised.value.status == 3
        assert "virsh" in str(raised.value.hint)
    assert xml_of(host.ports) == xml
    assert host.ports.hypervisor.find_domain("vm").state is VmState.STOPPED


def test_the_same_device_twice_refuses_the_start(tmp_path):
    host = with_vm(tmp_path)
    xml = HOSTDEV.sub(lambda match: match[0] * 2, xml_of(host.ports))
    with pytest.raises(Refused, match=r"has 0000:3b:00\.4 twice"):
        hook.prepare(host.ports, xml)


@pytest.mark.parametrize(("scenario", "profile"), BACKENDS[1:])
def test_another_uuid_refuses_the_start(tmp_path, scenario, profile):
    host = with_vm(tmp_path, scenario, profile)
    edit(host.ports, r"<address uuid='[^']*'", "<address uuid='11111111-2222-4333-8444-555555555555'")
    with pytest.raises(Refused, match="has 11111111-2222-4333-8444-555555555555 where its record has"):
        start(host.ports, "vm")


def test_the_mdevs_function_as_pci_device_refuses_the_start(tmp_path):
    host = with_vm(tmp_path, "a16", "A16-2Q")
    (vgpu,) = observe(host.ports, ReadScope()).vgpus
    bus, slot, function = re.fullmatch(r"0000:(..):(..)\.(.)", vgpu.function).groups()
    pci = f"<address domain='0x0000' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/>"
    edit(host.ports, HOSTDEV, f"<hostdev mode='subsystem' type='pci' managed='yes'><source>{pci}</source></hostdev>")
    with pytest.raises(Refused, match=f"has {vgpu.function} where its record has"):
        start(host.ports, "vm")


def test_another_device_of_the_vm_is_its_own_affair(tmp_path):
    host = with_vm(tmp_path)
    usb = "<hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/><product id='0x2'/></source></hostdev>"
    xml = xml_of(host.ports).replace("</devices>", f"{usb}</devices>")
    hook.prepare(host.ports, xml)


def test_a_vm_that_runs_without_its_vgpu_is_never_shown_with_it(tmp_path):
    host = without_device(tmp_path)
    host.ports.hypervisor.start(host.ports.hypervisor.find_domain("vm").uuid)
    (row,) = list_vms(host.ports, context()).data
    assert [v.attached for v in row.vgpus] == [False]
    done = start(host.ports, "vm")
    assert not done.changed
    assert "vm runs without A100-4C (0000:3b:00.4)" in done.warnings[0]
    stop(host.ports, "vm")
    assert start(host.ports, "vm").data.vgpus[0].attached


def test_reconcile_never_forgets_a_vgpu_that_another_program_took_out(tmp_path):
    host = without_device(tmp_path)
    done = run_reconcile(host.ports)
    assert [f.kind for f in done.data.findings] == ["vgpu-lost"]
    assert "put it back: vgpuctl start-vm vm" in done.data.findings[0].action
    assert not done.changed


def test_ensure_vm_started_puts_it_back(tmp_path):
    host = without_device(tmp_path)
    with operation(host.ports):
        ensure_vm(
            host.ports, context(wait_seconds=0), request("A100-4C", name="vm"), state="started")  # fmt: skip
    assert live_hostdevs(host.ports) == 1


def test_a_definition_that_changes_while_it_starts_is_noticed(tmp_path):
    host = with_vm(tmp_path)

    class Losing:
        def __getattr__(self, name: str) -> object:
            return getattr(host.ports.hypervisor, name)

        def start(self, uuid: str) -> None:
            edit(host.ports, HOSTDEV, "")
            host.ports.hypervisor.start(uuid)

    with pytest.raises(VgpuctlError, match=r"was started without 0000:3b:00\.4") as raised:
        start(replace(host.ports, hypervisor=Losing()), "vm")
    assert isinstance(raised.value, VerifyFailed)


@pytest.mark.parametrize("managed", ["yes", "no"])
def test_a_plain_vf_may_be_managed_either_way(tmp_path, managed):
    host = open_sim_host(tmp_path, "mixed")
    gpu = next(g for g in observe(host.ports, ReadScope()).gpus if g.backend == "sriov-vf")
    create(host.ports, request(name="vm", mode="sriov", gpu=gpu.address), start=False)
    xml = re.sub("managed='(yes|no)'", f"managed='{managed}'", xml_of(host.ports))
    hook.prepare(host.ports, xml)
