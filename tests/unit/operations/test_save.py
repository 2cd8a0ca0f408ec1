# SPDX-License-Identifier: Apache-2.0
"""save-vm: memory goes to libvirt's managed save, the vGPUs stay, start-vm goes on; and what cannot be saved."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults import CHANGING, Trial, acts_on_backends
from tests.hosts import (
    Silent,
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    picture,
    request,
    run_reconcile,
    set_vm,
    start,
    stop,
)
from tests.meanwhile import on_call, rebooted, unchanged, with_calls
from tests.reserving_vms import vm_of
from tests.unit.operations.test_faults import HOSTS
from tests.unit.operations.test_mtgpu_scheduler import mtt, write
from tests.unit.operations.test_xe_scheduler import card
from vgpuctl.errors import (
    DeviceFailed,
    HostCannot,
    Interrupted,
    InUse,
    LibvirtFailed,
    Refused,
    Temporary,
    VerifyFailed,
    VgpuctlError,
)
from vgpuctl.model.vm import VmState
from vgpuctl.operations.attach import attach, detach
from vgpuctl.operations.queries import list_vms
from vgpuctl.operations.save import save_vm
from vgpuctl.value import replace

PROFILES = {"a100-40": "A100-4C", "a16": "A16-2Q"}


def save(ports, name="vm", **more):
    return save_vm(ports, context(**more), name)


def with_vm(directory, scenario="a100-40", **more) -> SimulatedHost:
    host = open_sim_host(directory, scenario)
    create(host.ports, request(PROFILES[scenario], name="vm", **more))
    return host


def is_saved(host):
    return host.ports.hypervisor.leftovers(vm_of(host, "vm").uuid).managed_save


@pytest.mark.parametrize("reserve", ["always", "running"])
@pytest.mark.parametrize("scenario", PROFILES)
def test_a_saved_vm_is_off_keeps_its_vgpus_and_goes_on(tmp_path, scenario, reserve):
    host = with_vm(tmp_path, scenario, reserve=reserve)
    before = picture(host)
    outcome = save(host.ports)
    assert (outcome.changed, outcome.data.state, outcome.data.stop_reason) == (True, "stopped", "saved")
    assert outcome.steps == ("save memory and devices of VM vm, which is then off",)
    assert "same version of the vGPU driver" in outcome.notes[0]
    now = picture(host)
    assert (now.claims, now.types, now.mdevs) == (before.claims, before.types, before.mdevs)
    assert run_reconcile(host.ports, dry_run=True).data.findings == ()
    assert not save(host.ports).changed
    with unchanged(host):
        assert not stop(host.ports, "vm").changed
    assert start(host.ports, "vm").steps[-1] == "start VM vm from its saved memory"
    assert picture(host).running == before.running
    assert not is_saved(host)


def test_a_dry_run_says_what_would_happen_and_changes_nothing(tmp_path):
    host = with_vm(tmp_path)
    with unchanged(host):
        outcome = save(host.ports, dry_run=True)
    assert (outcome.changed, outcome.dry_run, outcome.data.state) == (True, True, "running")


def test_progress_is_shown_and_an_interruption_lets_the_vm_run_on(tmp_path):
    percents = []

    class Ends(Silent):
        def on_step_progress(self, number, text, percent):
            percents.append(percent)
            raise Interrupted("interrupted", signal_number=2)

    host = with_vm(tmp_path)
    with pytest.raises(Interrupted):
        save(host.ports, progress=Ends())
    assert len(percents) == 1
    assert 0 <= percents[0] <= 100
    assert vm_of(host, "vm").state is VmState.RUNNING
    assert not is_saved(host)


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        (VmState.PAUSED, "virsh resume vm"),
        (VmState.CRASHED, "vgpuctl stop-vm vm --force"),
        (VmState.STOPPED, "vgpuctl start-vm vm"),
    ],
)
def test_only_a_running_vm_is_saved(tmp_path, state, hint):
    host = with_vm(tmp_path)
    real = host.ports.hypervisor
    if state is VmState.STOPPED:
        stop(host.ports, "vm")
    shown = partial(_with_state, state)
    ports = with_calls(
        host.ports,
        "hypervisor",
        domains=lambda: tuple(map(shown, real.domains())),
        find_domain=lambda name: shown(real.find_domain(name)),
    )
    with unchanged(host), pytest.raises(Refused, match=f"vm is {state}") as raised:
        save(ports)
    assert str(raised.value.hint).startswith(hint)


def _with_state(state, domain):
    return domain and replace(domain, state=state)


def test_one_without_a_definition_would_be_lost(tmp_path):
    host = with_vm(tmp_path)
    host.sim.hypervisor.make_transient(vm_of(host, "vm").uuid)
    with unchanged(host), pytest.raises(Refused, match="running without a definition"):
        save(host.ports)


def refused(host, ports=None):
    with unchanged(host), pytest.raises(HostCannot) as raised:
        save(ports or host.ports)
    assert raised.value.facts["check"] == "not-movable"
    assert "vgpuctl stop-vm vm shuts it down instead" in str(raised.value.hint)
    return str(raised.value)


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    host = open_sim_host(tmp_path / "whole", "mixed")
    create(host.ports, request(mode="passthrough", name="vm"))
    assert "no driver can read the state of a whole GPU" in refused(host)
    host = card(tmp_path / "vf")
    create(host.ports, request(mode="sriov", name="vm"))
    assert "vfio-pci cannot read the state of a VF; with xe-vfio-pci it could" in refused(host)
    host = with_vm(tmp_path / "params", vgpu_params=(("enable_uvm", "1"),))
    assert "its vGPU parameter enable_uvm=1 switches live migration off" in refused(host)


def test_qemu_has_the_last_word_and_is_asked_before(tmp_path):
    host = with_vm(tmp_path)
    blocked = with_calls(host.ports, "hypervisor", migration_blockers=lambda _: ("disk vda is busy", "and more"))
    assert "vm cannot be saved: QEMU says: disk vda is busy; QEMU says: and more" in refused(host, blocked)
    silent = with_calls(host.ports, "hypervisor", migration_blockers=lambda _: None)
    assert save(silent).changed


def test_old_programs_are_named_with_the_versions_that_are_needed(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    create(host.ports, request("T4-2Q", name="vm"))
    text = refused(host)
    assert (
        "libvirt 8.6.0 or newer is needed, and this is 8.0.0; QEMU 8.1.0 or newer is needed, and this is 6.2.0" in text
    )
    assert "VFIO device doesn't support migration" not in text


@pytest.mark.parametrize(
    ("device", "named"),
    [
        (
            "<filesystem type='mount'><driver type='virtiofs'/><source dir='/srv'/><target dir='srv'/></filesystem>",
            "srv",
        ),
        ("<shmem name='frames'><model type='ivshmem-plain'/><size unit='M'>4</size></shmem>", "frames"),
    ],
)
def test_a_device_that_qemu_cannot_send_is_named_before(tmp_path, device, named):
    host = with_vm(tmp_path)
    real = host.ports.hypervisor

    def with_device(name):
        domain = real.find_domain(name)
        return domain and replace(domain, live_xml=domain.live_xml.replace("</devices>", f"{device}</devices>"))

    assert named in refused(host, with_calls(host.ports, "hypervisor", find_domain=with_device))


def test_another_program_may_save_it_meanwhile(tmp_path):
    host = with_vm(tmp_path)
    uuid = vm_of(host, "vm").uuid
    ports = on_call(host.ports, "hypervisor.save", lambda: host.ports.hypervisor.save(uuid, lambda _: None))
    assert save(ports).data.state == "stopped"
    assert is_saved(host)


def test_a_save_that_left_nothing_is_an_error(tmp_path):
    host = with_vm(tmp_path)
    ports = with_calls(host.ports, "hypervisor", save=lambda *_: None)
    with pytest.raises(VerifyFailed, match="is running and libvirt has no saved memory of it"):
        save(ports)


def test_no_other_command_gets_in_while_it_is_saved(tmp_path):
    host = with_vm(tmp_path)
    errors = []

    def meddle():
        try:
            delete(open_sim_host(host.directory, host.scenario).ports, "vm")
        except VgpuctlError as error:
            errors.append(error.code)

    save(on_call(host.ports, "hypervisor.save", meddle))
    assert errors == ["busy"]


def test_after_a_boot_it_goes_on_in_its_slots(tmp_path):
    host = with_vm(tmp_path)
    save(host.ports)
    host = rebooted(host)
    assert is_saved(host)
    assert start(host.ports, "vm").data.state == "running"
    assert not is_saved(host)


def test_a_function_that_another_vm_took_meanwhile_is_named(tmp_path):
    """With `reserve: running` nothing holds it over a boot; a start elsewhere would lose the memory."""
    host = with_vm(tmp_path, reserve="running")
    save(host.ports)
    (carrier,) = (v.carrier for v in vm_of(host, "vm").record.vgpus)
    host = rebooted(host)
    create(host.ports, request("A100-4C", name="other"))
    assert [v.carrier for v in vm_of(host, "other").record.vgpus] == [carrier]
    with unchanged(host), pytest.raises(InUse, match=f"goes on only with {carrier}") as raised:
        start(host.ports, "vm")
    assert "virsh managedsave-remove vm gives the memory up" in raised.value.hint
    delete(host.ports, "other")
    start(host.ports, "vm")
    assert not is_saved(host)


def test_a_start_that_is_interrupted_does_not_lose_the_memory(tmp_path):
    host = with_vm(tmp_path)
    save(host.ports)

    def interrupt():
        raise Interrupted("interrupted", signal_number=2)

    with pytest.raises(VgpuctlError):
        start(on_call(host.ports, "hypervisor.start", interrupt, after=True), "vm")
    assert vm_of(host, "vm").state is VmState.RUNNING
    assert run_reconcile(host.ports, dry_run=True).data.findings == ()


def test_list_vms_says_that_it_is_saved(tmp_path):
    host = with_vm(tmp_path)
    save(host.ports)
    (row,) = list_vms(host.ports, context()).data
    assert (row.state, row.stop_reason, row.can_move) == ("stopped", "saved", False)


MT_STEPS = "have the driver of vGPU {} prepare vm to be saved"


def with_mt_vm(directory):
    host = mtt(directory)
    create(host.ports, request("mtgpu-1104", name="vm"))
    return host


def test_the_driver_of_moore_threads_is_told_first(tmp_path):
    host = with_mt_vm(tmp_path)
    (carrier,) = (v.carrier for v in vm_of(host, "vm").record.vgpus)
    uuid = vm_of(host, "vm").uuid
    with pytest.raises(LibvirtFailed, match="the guest is not ready"):
        host.ports.hypervisor.save(uuid, lambda _: None)
    outcome = save(host.ports)
    assert outcome.steps[0] == MT_STEPS.format(carrier)
    assert "the same versions of mtgpu, QEMU and libvirt" in outcome.notes[0]
    start(host.ports, "vm")
    assert host.ports.sysfs.read(f"/sys/bus/mdev/devices/{carrier}/common") == "\n", "each save is announced again"
    save(host.ports)


def test_a_guest_that_does_not_get_ready_in_five_seconds(tmp_path):
    host = with_mt_vm(tmp_path)
    real = host.ports.sysfs

    def read(path):
        return "GUEST_SAVE_START\n" if path.endswith("/common") else real.read(path)

    began = host.ports.clock.monotonic()
    with pytest.raises(Temporary, match="was not ready to be saved within 5 s"):
        save(with_calls(host.ports, "sysfs", read=read))
    assert 5 <= host.ports.clock.monotonic() - began < 6
    assert vm_of(host, "vm").state is VmState.RUNNING


def test_overcommitted_memory_is_not_saved(tmp_path):
    host = mtt(tmp_path)
    write(host, "options mtgpu vgpu_overcommit_enable=1\n")
    host = rebooted(host)
    create(host.ports, request("mtgpu-1104", name="vm"))
    assert "memory is overcommitted (vgpu_overcommit_enable)" in refused(host)


def test_a_driver_without_the_file_is_named(tmp_path):
    host = with_mt_vm(tmp_path)

    def write_text(path, text):
        raise FileNotFoundError(2, "No such file or directory", path)

    with pytest.raises(DeviceFailed, match="preparing vm to be saved failed: No such file or directory"):
        save(with_calls(host.ports, "sysfs", write=write_text))


def prepared(directory: Path, kind: str) -> SimulatedHost:
    text, profile = HOSTS[kind]
    host = open_sim_host(directory, text=text)
    create(host.ports, request(profile, name="vm"))
    return host.again()


def whole(host: SimulatedHost, where: str) -> None:
    """Check that the VM runs, or is saved, with its vGPU and its claim, and that it goes on."""
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where
    if vm_of(host, "vm").state is not VmState.RUNNING:
        assert is_saved(host), where
        start(host.ports, "vm")
    now = picture(host)
    (held,) = now.running.values()
    assert set(held) == set(now.claims), where


@pytest.mark.parametrize(("_act", "kind"), acts_on_backends(["save"], HOSTS))
def test_whatever_call_fails_or_a_process_dies_in_the_vm_runs_or_is_saved(tmp_path, kind, _act, spawn):
    trial = Trial(tmp_path, partial(prepared, kind=kind), save, whole)
    calls = trial.calls()
    assert "hypervisor.save" in set(calls) & CHANGING
    assert trial.failures(calls) >= 1
    assert trial.deaths(calls, spawn) == 0


def test_a_saved_vm_keeps_its_vgpus_and_a_change_holds_from_its_next_boot(tmp_path):
    host = with_vm(tmp_path)
    save(host.ports)
    calls = (
        lambda: detach(host.ports, context(), "vm"),
        lambda: attach(host.ports, context(), request("A100-4C", name="vm")),
        lambda: set_vm(host.ports, request("A100-4C", 2, name="vm")),
    )
    for call in calls:
        with unchanged(host), pytest.raises(InUse, match="vm has a managed save"):
            call()
    outcome = set_vm(host.ports, request(name="vm", memory_mib=8192), "memory")
    assert "vm is saved: it goes on as it was, and the change holds from its next boot on" in outcome.warnings
    start(host.ports, "vm")
    assert vm_of(host, "vm").state is VmState.RUNNING
