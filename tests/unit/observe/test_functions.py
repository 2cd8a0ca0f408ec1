# SPDX-License-Identifier: Apache-2.0
"""What carries a VM's vGPU is gone from the kernel, or another VM takes it: shown and named on every backend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, context, create, open_sim_host, operation, picture, request, run_reconcile, start
from tests.unit.doctor.check_results import run_check
from tests.values import T2Q, a100, assigned, snapshot, t4, vm
from vgpuctl.errors import HostCannot, InUse, NoCapacity, VgpuctlError
from vgpuctl.hook import run as hook
from vgpuctl.model.gpu import Backend, GpuMode
from vgpuctl.model.vm import AssignedVgpu, HostdevRef, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.definition import require_function
from vgpuctl.operations.gpu_mode import ModeRequest, set_mode
from vgpuctl.operations.queries import list_vms, show_gpu, show_vm
from vgpuctl.operations.vgpus import list_vgpus
from vgpuctl.value import replace

SRIOV = """version: 1
kernel: 6.8.4-2-pve
gpus:
  - {model: GPU, address: "0000:00:02.0", backend: sriov-vf, driver: i915, vendor_id: "8086", device_id: "46d1",
     class: "030000", configurable: true, vfs: {total: 7, enabled: 7}}
"""
PLAIN_VFS = a100(backend=Backend.SRIOV_VF, mode=GpuMode.SRIOV, types=(), vfs=2)
BACKENDS = [("a100-40", None, "A100-4C", "vgpu"), ("a16", None, "A16-2Q", "vgpu"), ("sriov", SRIOV, None, "sriov")]


def with_vm(tmp_path: Path, scenario: str, text: str | None, profile: str | None, mode: str) -> SimulatedHost:
    host = open_sim_host(tmp_path, scenario, text)
    create(host.ports, request(profile, name="web", mode=mode), start=False)
    return host


def assigned_function(address: str, backend: Backend = Backend.SRIOV_VF) -> AssignedVgpu:
    return AssignedVgpu(0, backend, PLAIN_VFS.address, address, address, None)


def gpu_of(host: SimulatedHost) -> str:
    (vgpu,) = show_vm(host.ports, context(), "web").data.vgpus
    return vgpu.gpu


def turn_vfs(host: SimulatedHost, number: int) -> None:
    """Change the number of VFs as another program does; NVIDIA's turns all on or off."""
    address = gpu_of(host)
    if show_gpu(host.ports, address).data.driver == "nvidia":
        host.ports.vendor_commands.sriov_manage("-e" if number else "-d", address, deadline_seconds=1)
        return
    for text in ("0\n", f"{number}\n"):
        host.ports.sysfs.write(f"/sys/bus/pci/devices/{address}/sriov_numvfs", text)


@pytest.mark.parametrize(("scenario", "text", "profile", "mode"), BACKENDS)
def test_without_vfs_a_start_names_the_command_that_brings_them_back_and_every_list_shows_it(
    tmp_path, scenario, text, profile, mode
):
    host = with_vm(tmp_path, scenario, text, profile, mode)
    address = gpu_of(host)
    turn_vfs(host, 0)
    before = picture(host)
    for begin in (lambda: start(host.ports, "web"), lambda: hook.prepare(host.ports, domain_xml(host))):
        words = rf"the VFs of {address} .* are off: 0 of \d+ enabled, so .* does not exist"
        with pytest.raises(HostCannot, match=words) as raised:
            begin()
        assert raised.value.hint == f"vgpuctl set-mode {address} {mode}"
        assert picture(host) == before
    finding = run_check("lost-vgpus", observe(host.ports, ReadScope()))
    assert (finding.verdict, finding.fix) == ("fail", f"vgpuctl set-mode {address} {mode}")
    assert "VM web is off, and cannot start" in finding.evidence[0]
    vm = show_vm(host.ports, context(), "web").data
    shown = (list_vgpus(host.ports).data, list_vms(host.ports, context()).data[0].vgpus, vm.vgpus)
    assert [[v.present for v in vgpus] for vgpus in shown] == [[False]] * 3
    assert run_reconcile(host.ports).data.findings == ()
    with operation(host.ports):
        set_mode(host.ports, context(), ModeRequest(address, mode))
    start(host.ports, "web")


def domain_xml(host: SimulatedHost) -> str:
    domain = host.ports.hypervisor.find_domain("web")
    return domain.xml


def define_user(host: SimulatedHost, address: str) -> str:
    """Define a VM of another program that has a function of the host; return its UUID."""
    domain, bus, slot, function = re.split("[:.]", address)
    source = f"<address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/>"
    device = f"<hostdev mode='subsystem' type='pci' managed='yes'><source>{source}</source></hostdev>"
    system = "<os><type arch='x86_64' machine='q35'>hvm</type></os>"
    xml = f"<domain type='kvm'><name>legacy</name><memory>4096</memory>{system}<devices>{device}</devices></domain>"
    return host.ports.hypervisor.define(xml).uuid


WHOLE_BACKENDS = [*BACKENDS, ("t4", None, "T4-2Q", "vgpu"), ("h100-mig", None, "H100-1-10C", "vgpu")]


@pytest.mark.parametrize(("scenario", "text", "profile", "mode"), WHOLE_BACKENDS)
def test_a_gpu_that_a_vm_names_as_a_whole_takes_nothing_new_and_doctor_warns_before(
    tmp_path, scenario, text, profile, mode
):
    host = with_vm(tmp_path, scenario, text, profile, mode)
    address = gpu_of(host)
    define_user(host, address)
    with pytest.raises((NoCapacity, InUse)) as raised:
        create(host.ports, request(profile, name="more", mode=mode, gpu=address), start=False)
    assert "legacy" in f"{raised.value.message} {raised.value.facts.get('details')}"
    finding = run_check("shared-vgpus", observe(host.ports, ReadScope()))
    assert finding.verdict == "fail"
    assert f"VM legacy, which is stopped, has all of GPU {address}" in finding.evidence[0]
    assert "of web there" in finding.evidence[0]
    start(host.ports, "web")


@pytest.mark.parametrize(("scenario", "text", "profile", "mode"), WHOLE_BACKENDS)
def test_while_a_vm_has_the_whole_gpu_errors_name_it(tmp_path, scenario, text, profile, mode):
    host = with_vm(tmp_path, scenario, text, profile, mode)
    address = gpu_of(host)
    host.ports.hypervisor.start(define_user(host, address))
    assert [(v.vm, v.present) for v in list_vgpus(host.ports).data] == [("legacy", True), ("web", False)]
    with pytest.raises(InUse, match=rf"VM legacy, which is running, has the whole GPU {address}") as raised:
        start(host.ports, "web")
    assert (raised.value.hint or "").startswith("virsh shutdown legacy")
    with pytest.raises(InUse, match=f"the definition of VM legacy has all of {address}"):
        hook.prepare(host.ports, domain_xml(host))
    finding = run_check("lost-vgpus", observe(host.ports, ReadScope()))
    assert finding.verdict == "fail"
    assert "VM legacy, which is running, has the whole GPU" in finding.evidence[0]


def test_a_vf_under_an_mdev_in_another_vm_is_named(tmp_path):
    host = with_vm(tmp_path, "a16", None, "A16-2Q", "vgpu")
    (vgpu,) = list_vgpus(host.ports).data
    user = define_user(host, vgpu.function)
    finding = run_check("shared-vgpus", observe(host.ports, ReadScope()))
    assert finding.verdict == "fail"
    assert f"VM legacy, which is stopped, has the VF {vgpu.function}" in finding.evidence[0]
    host.ports.hypervisor.start(user)
    assert [(v.vm, v.present) for v in list_vgpus(host.ports).data] == [("legacy", True), ("web", False)]
    with pytest.raises(InUse, match=f"{vgpu.function} is used by legacy, but web needs it") as raised:
        start(host.ports, "web")
    assert raised.value.hint == "virsh shutdown legacy"


def test_the_audio_function_of_a_gpu_with_vgpus_in_another_vm_is_named():
    gpu = t4()
    audio = vm(2, record=None, hostdevs=(HostdevRef("pci", "0000:5e:00.1", managed=True),), state=VmState.STOPPED)
    finding = run_check("shared-vgpus", snapshot(gpu, vms=(vm(1, assigned(gpu, T2Q)), audio)))
    assert finding.verdict == "fail"
    assert "has 0000:5e:00.1, which is on the same card as GPU 0000:5e:00.0" in finding.evidence[0]
    alone = run_check("shared-vgpus", snapshot(gpu, vms=(audio,)))
    assert alone.verdict == "ok"


def test_with_fewer_vfs_only_what_is_gone_is_missing(tmp_path):
    host = with_vm(tmp_path, "sriov", SRIOV, None, "sriov")
    create(host.ports, request(name="second", mode="sriov"), start=False)
    turn_vfs(host, 1)
    assert [v.present for v in list_vgpus(host.ports).data] == [True, False]
    start(host.ports, "web")
    with pytest.raises(HostCannot, match=r"does not exist: 1 of 7 VFs of 0000:00:02.0 .* are on, driver i915"):
        start(host.ports, "second")


def test_where_host_yaml_has_the_vfs_restore_host_brings_them_back():
    gpu = replace(PLAIN_VFS, backend=None, functions=(), vfs_enabled=0, desired_mode=GpuMode.SRIOV)
    with pytest.raises(HostCannot) as raised:
        require_function(snapshot(gpu), assigned_function(PLAIN_VFS.functions[0].address))
    assert raised.value.hint == "vgpuctl restore-host"


@pytest.mark.parametrize("backend", [Backend.SRIOV_VF, Backend.PASSTHROUGH])
def test_a_card_that_was_pulled_out_is_not_there(backend):
    lost = assigned_function(PLAIN_VFS.address, backend)
    seen = snapshot(vms=(vm(1, lost),))
    assert [v.present for v in seen.vgpus] == [False]
    with pytest.raises(VgpuctlError, match="is no longer on this host"):
        require_function(seen, lost)


def test_a_function_of_a_slot_may_be_gone_alone():
    gpu = replace(PLAIN_VFS, backend=Backend.PASSTHROUGH, functions=(), vfs_enabled=0)
    audio = assigned_function("0000:3b:00.1", Backend.PASSTHROUGH)
    with pytest.raises(HostCannot, match=r"is no longer on this host, although .* is"):
        require_function(snapshot(gpu), audio)
