# SPDX-License-Identifier: Apache-2.0
"""vGPUs without a VM: listed in host.yaml, never reassigned, never leaked, restored after a boot, gone when deleted.

delete-vgpu with the UUID or address of a device in place of a name says whose it is, and what removes it.
"""

from __future__ import annotations

import pytest

from tests.hosts import (
    WAIT_SECONDS,
    context,
    create,
    living_operation,
    open_sim_host,
    picture,
    request,
    run_reconcile,
    take_over,
)
from tests.meanwhile import rebooted, unchanged, with_calls
from tests.schedulers import TWO_MS
from tests.unit.operations.test_restore import restore
from tests.vgpus import drop, finding_kinds, make, spec_of
from vgpuctl.errors import (
    Busy,
    Exists,
    InUse,
    InvalidInput,
    NeedsConfirmation,
    NoCapacity,
    NotFound,
    Refused,
    Unmanaged,
)
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations import queries
from vgpuctl.operations.boot import read_domain_files
from vgpuctl.operations.desired_state import cordon
from vgpuctl.operations.devices import make_devices
from vgpuctl.operations.gpu_mode import ModeRequest, set_mode
from vgpuctl.operations.gpu_scheduler import SchedulerRequest, set_scheduler
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.operations.steps.host_file import RemoveVgpuEntry
from vgpuctl.operations.vgpus import list_vgpus
from vgpuctl.value import replace

PROFILES = {"a100-40": "A100-4C", "t4": "T4-2Q", "a16": "A16-2Q"}
DESK = """<domain type='kvm'><name>desk</name><uuid>11111111-2222-4333-8444-555555555555</uuid>
<memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>
<controller type='pci' index='0' model='pcie-root'/><controller type='pci' index='1' model='pcie-root-port'/>
<controller type='usb' model='none'/><memballoon model='none'/>%s</devices></domain>"""


@pytest.mark.parametrize("scenario", PROFILES)
def test_it_is_created_shown_and_deleted_without_leftovers(tmp_path, scenario):
    host = open_sim_host(tmp_path, scenario)
    before = picture(host)
    planned = make(host.ports, PROFILES[scenario], dry_run=True)
    assert (planned.changed, len(planned.steps), picture(host)) == (True, 3, before)
    assert host.ports.host_file.read() is None
    made = make(host.ports, PROFILES[scenario])
    shown = made.data
    assert (shown.name, shown.present, shown.ownership, shown.vm) == ("spare", True, "managed", None)
    for field in ("carrier", "hostdev", "usage", "gpu"):
        assert getattr(made.data, field) == getattr(planned.data, field)
    seen = picture(host)
    assert list({**seen.mdevs, **seen.types}) == [made.data.carrier] == list(seen.claims)
    assert spec_of(host).vgpus["spare"].carrier == made.data.carrier
    assert [v.name for v in list_vgpus(host.ports).data] == ["spare"]
    on_gpu = [v for g in queries.list_gpus(host.ports).data for v in g.vgpus]
    assert [(v.name, v.ownership) for v in on_gpu] == [("spare", "managed")]
    assert finding_kinds(host.again()) == []
    assert len(drop(host.ports, dry_run=True).steps) == 3
    assert drop(host.ports).data.present is False
    assert (picture(host), spec_of(host).vgpus, finding_kinds(host)) == (before, {}, [])


def test_the_same_name_gives_the_same_mdev_again_and_another_name_another(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    first = make(host.ports, "T4-2Q").data.carrier
    assert make(host.ports, "T4-2Q", "other").data.carrier != first
    drop(host.ports)
    assert make(host.ports, "T4-2Q").data.carrier == first


@pytest.fixture
def host(tmp_path):
    return open_sim_host(tmp_path)


def test_parameters_come_back_after_a_boot_with_the_device(host):
    make(host.ports, vgpu_params=(("disable_vnc", "1"), ("frame_rate_limiter", "0")))
    make(host.ports, name="other")
    before = picture(host)
    assert list(before.params.values()) == ["disable_vnc=1,frame_rate_limiter=0"]
    host = rebooted(host)
    assert finding_kinds(host) == ["vgpu-missing", "vgpu-missing"]
    assert [e.name for e in restore(host, spec_of(host)).data.restored] == ["other", "spare"]
    assert picture(host) == before
    assert finding_kinds(host.again()) == []
    assert not restore(host, spec_of(host)).changed


def test_one_that_is_missing_counts_as_taken_and_no_vm_gets_its_place(tmp_path):
    host = open_sim_host(tmp_path, text="version: 1\ngpus: [{model: A100, vfs: {total: 2, enabled: 2}}]\n")
    make(host.ports)
    host = rebooted(host)
    with pytest.raises(NoCapacity):
        create(host.ports, request("A100-5C"))
    create(host.ports, request("A100-4C"), start=False)
    with pytest.raises(NoCapacity) as raised:
        create(host.ports, request("A100-4C"), start=False)
    assert "vGPU spare" in str(raised.value.facts)
    assert restore(host, spec_of(host)).changed


def test_the_hook_needs_no_host_yaml_to_leave_it_alone(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    create(host.ports, request("T4-2Q", name="vm"), start=False)
    vms, _ = read_domain_files(host.ports)
    make(host.ports, "T4-2Q")
    host.sim.host_file.write_text("nothing that can be read: [gpus")
    assert make_devices(host.ports, context(wait_seconds=5), vms[0], vms[0].record, vms).steps == ()


def test_a_vm_of_virsh_that_refers_to_it_is_shown_and_keeps_it(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    made = make(host.ports, "T4-2Q")
    uuid = host.ports.hypervisor.define(DESK % made.data.hostdev).uuid
    for running in (False, True):
        if running:
            host.ports.hypervisor.start(uuid)
            assert picture(host).running[uuid] == (made.data.carrier,)
        with pytest.raises(InUse, match="is in use by desk") as raised:
            drop(host.ports)
        assert raised.value.facts["vms"] == ["desk"]
        assert [v.vm for v in list_vgpus(host.ports).data] == ["desk"]
        assert [v.name for v in queries.show_vm(host.ports, context(), "desk").data.vgpus] == ["spare"]
        assert finding_kinds(host) == []
    host.ports.hypervisor.destroy(uuid)
    host.ports.hypervisor.undefine(uuid)
    drop(host.ports)


@pytest.mark.parametrize("scenario", PROFILES)
def test_a_vm_that_names_it_only_in_qemus_arguments_keeps_it(tmp_path, scenario):
    host = open_sim_host(tmp_path, scenario)
    carrier = make(host.ports, PROFILES[scenario]).data.carrier
    bus = "pci" if ":" in carrier else "mdev"
    argument = f"<qemu:arg value='vfio-pci,sysfsdev=/sys/bus/{bus}/devices/{carrier}'/>"
    xml = (DESK % "").replace("<domain ", "<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0' ")
    host.ports.hypervisor.define(xml.replace("</domain>", f"<qemu:commandline>{argument}</qemu:commandline></domain>"))
    assert [v.vm for v in list_vgpus(host.ports).data] == ["desk"]
    assert list_vgpus(host.ports, unassigned=True).data == ()
    with unchanged(host), pytest.raises(InUse, match="is in use by desk") as raised:
        drop(host.ports)
    assert "virsh edit desk" in str(raised.value.hint)


def test_what_is_held_by_a_process_stays_and_nothing_is_changed(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    made = make(host.ports, "T4-2Q")
    host.ports.hypervisor.define(DESK % made.data.hostdev)
    host.ports.hypervisor.start("11111111-2222-4333-8444-555555555555")
    unknown_to_libvirt = with_calls(host.ports, "hypervisor", domains=lambda: ())
    with unchanged(host, with_host_file), pytest.raises(InUse, match="is in use by"):
        drop(unknown_to_libvirt)


def with_host_file(host):
    return picture(host), host.ports.host_file.read()


def test_a_name_is_given_once_and_an_unknown_one_is_suggested(host):
    make(host.ports)
    with pytest.raises(Exists, match=r"a vGPU spare already exists: A100-4C on 0000:3b:00\.0"):
        make(host.ports)
    with pytest.raises(NotFound, match=r"there is no vGPU sparre in host\.yaml") as raised:
        drop(host.ports, "sparre")
    assert raised.value.facts["near"] == ["spare"]
    assert make(host.ports, name=None).data.name.startswith("vgpu-")


def test_nothing_is_deleted_before_the_question_is_answered(host):
    make(host.ports)

    def no(question: str, details: tuple[str, ...]) -> None:
        assert "spare" in question
        assert len(details) == 3
        raise NeedsConfirmation("no")

    with unchanged(host), pytest.raises(NeedsConfirmation):
        drop(host.ports, confirm=no)


def test_invalid_requests_are_refused_before_anything_is_written(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    before = picture(host)
    with pytest.raises(InvalidInput, match="one vGPU"):
        make(host.ports, "A100-4C", count=2)
    with pytest.raises(InvalidInput, match="no PCI address"):
        make(host.ports, "mtty-2", gpu="mtty")
    cordon(host.ports, context(), "0000:3b:00.0", cordoned=True)
    with pytest.raises(NoCapacity):
        make(host.ports)
    with pytest.raises(InvalidInput, match="captured"):
        make(replace(host.ports, read_only_reason="captured"))
    assert picture(host) == before


def test_a_broken_host_yaml_stops_what_depends_on_it_and_leaves_the_claims_alone(host):
    make(host.ports)
    whole = picture(host)
    host.sim.host_file.write_text("version: 1\nvgpu: {}\n# vgpus\n")
    host = host.again()
    for act in (make, drop, run_reconcile, list_vgpus, lambda w: create(w, request("A100-4C"))):
        with pytest.raises(InvalidInput, match=r"host\.yaml:2:1"):
            act(host.ports)
    assert finding_kinds(host) == []
    assert picture(host) == whole


def test_a_claim_that_was_lost_is_written_again(host):
    made = make(host.ports)
    (claim,) = host.ports.claims.all()
    host.ports.claims.remove(claim.carrier, claim.vm_uuid)
    assert finding_kinds(host) == ["claim-lost"]
    run_reconcile(host.ports)
    assert [(c.carrier, c.vm_uuid) for c in host.ports.claims.all()] == [(made.data.carrier, claim.vm_uuid)]


def test_what_somebody_else_put_there_is_reported_and_stays(host):
    path = f"/sys/bus/pci/devices/{make(host.ports).data.carrier}/nvidia/current_vgpu_type"
    host = rebooted(host)
    host.ports.sysfs.write(path, "469\n")
    (observed,) = (v for v in observe(host.ports, ReadScope(types=True)).vgpus if v.name)
    assert "has A100-5C" in observed.reason
    done = drop(host.ports)
    assert (len(done.notes), len(done.steps)) == (1, 2)
    assert host.ports.sysfs.read(path).strip() == "469"


def test_vfs_are_not_taken_from_under_it(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    carrier = make(host.ports).data.carrier
    with pytest.raises(InUse, match=carrier):
        set_mode(host.ports, context(), ModeRequest("0000:3b:00.0", "passthrough", drain=True))


def test_a_vf_assigned_to_a_vm_is_not_used_for_it(host):
    carrier = create(host.ports, request("A100-4C", name="vm"), start=False).data.vgpus[0].carrier
    entry = f'{{profile: A100-4C, gpu: "0000:3b:00.0", carrier: "{carrier}"}}'
    host.sim.host_file.write_text(f"version: 1\nvgpus:\n  spare: {entry}\n")
    host = host.again()
    assert finding_kinds(host) == ["vgpu-conflict"]
    with pytest.raises(InUse, match="is the vGPU of vm"):
        drop(host.ports)
    host.sim.reboot()
    with pytest.raises(Exception, match=f"{carrier} is used by vm"):
        restore(host.again(), spec_of(host))


def test_two_entries_with_one_place_are_refused_before_anything_is_done(host):
    entry = '{profile: A100-4C, gpu: "0000:3b:00.0", carrier: "0000:3b:00.4"}'
    host.sim.host_file.write_text(f"version: 1\nvgpus:\n  one: {entry}\n  two: {entry}\n")
    says = r"host\.yaml:4:57: vgpus\.two\.carrier: 0000:3b:00\.4 is also the carrier of vGPU one"
    for act in (lambda: list_vgpus(host.ports), lambda: make(host.ports), lambda: drop(host.ports, "one")):
        with unchanged(host), pytest.raises(InvalidInput, match=says):
            act()


def test_a_name_of_which_a_claim_is_left_is_not_given_before_reconcile(host):
    make(host.ports)
    claim = host.ports.claims.all()[0]
    drop(host.ports)
    other = open_sim_host(host.directory, host.scenario)
    TakeClaim(replace(claim, operation=other.ports.operations.current().id)).perform(other.ports)
    with pytest.raises(Busy, match="is creating vGPU spare"):
        make(host.ports)
    host = other.again()
    with pytest.raises(Busy, match="was creating vGPU spare") as raised:
        make(host.ports)
    assert "reconcile" in raised.value.hint
    run_reconcile(host.ports)
    make(host.ports)


def test_vfs_that_a_boot_turned_off_come_back_before_the_vgpus_of_host_yaml(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    gpu = "0000:17:00.0"
    set_mode(host.ports, context(), ModeRequest(gpu, "vgpu"))
    carrier = make(host.ports, "A16-2Q", gpu=gpu).data.carrier
    before = picture(host)
    host = rebooted(host)
    restore(host, spec_of(host))
    now = picture(host)
    assert (now.mdevs[carrier], now.claims) == (before.mdevs[carrier], before.claims)


def test_a_claim_that_a_vm_left_on_it_does_not_take_it_away(host):
    create(host.ports, request("A100-4C", name="vm"))
    make(host.ports, "A100-4C")
    vm, spare = (next(v for v in observe(host.ports, ReadScope()).vgpus if v.vm == name) for name in ("vm", None))
    (claim,) = (c for c in host.ports.claims.all() if c.carrier == spare.carrier)
    host.ports.claims.remove(claim.carrier, claim.vm_uuid)
    host.ports.claims.add(replace(claim, vm="vm", vm_uuid=vm.vm_uuid, operation=None))
    before = picture(host).types
    run_reconcile(host.ports)
    run_reconcile(host.ports)
    assert not run_reconcile(host.ports).changed
    assert picture(host).types == before
    assert {c.carrier: c.vm for c in host.ports.claims.all()}[spare.carrier] == "vgpu spare"


def test_one_recreated_during_the_deletion_prompt_stays(host):
    make(host.ports)

    def recreate(question, details):
        other = host.again()
        drop(other.ports)
        make(other.ports, "A100-8C")

    with pytest.raises(Busy, match=r"vGPU spare of host\.yaml has just been changed"):
        drop(host.again().ports, confirm=recreate)
    assert spec_of(host).vgpus["spare"].profile == "A100-8C"
    assert finding_kinds(host.again()) == []


def test_an_entry_that_is_anothers_when_the_file_is_edited_stays_in_it(host):
    make(host.ports)
    (mine,) = observe(host.ports, ReadScope()).host_vgpus
    drop(host.ports)
    make(host.ports, "A100-8C")
    before = host.ports.host_file.read()
    with pytest.raises(Busy, match="now has another vGPU spare: A100-8C"):
        RemoveVgpuEntry(mine).perform(host.ports)
    assert host.ports.host_file.read() == before


def test_messages_call_it_a_vgpu_and_no_vm(host):
    carrier = make(host.ports).data.carrier
    (claim,) = host.ports.claims.all()
    claim = replace(claim, operation=living_operation(host.ports).id)
    host.ports.claims.replace(claim)
    other = replace(claim, vm="vm", vm_uuid="11111111-2222-4333-8444-555555555555")
    with pytest.raises(InUse, match="is claimed for vGPU spare, by process"):
        TakeClaim(other).perform(host.ports)
    for taker, says in ((other, f"{carrier} is claimed for vGPU spare$"), (claim, "works on vGPU spare: vgpuctl test")):
        later = replace(taker, operation="later")
        with pytest.raises(Busy, match=says):
            take_over(host.ports, (later,), WAIT_SECONDS)
    with pytest.raises(Busy, match="works on vGPU spare"):
        set_scheduler(host.ports, context(wait_seconds=0), SchedulerRequest(claim.gpu, TWO_MS, drain=True))


UUID = "5bfcd486-c5eb-43e4-a5ee-97366690106f"
VF = "0000:3b:00.4"


@pytest.mark.parametrize("name", [UUID, UUID.upper()])
@pytest.mark.parametrize("used", [False, True])
def test_an_mdev_of_another_program(tmp_path, name, used):
    host = open_sim_host(tmp_path, "t4")
    gpu = observe(host.ports, ReadScope(types=True)).gpus[0]
    type_id = next(t.type_id for t in gpu.types if t.profile == "T4-2Q")
    host.ports.sysfs.write(f"/sys/bus/pci/devices/{gpu.address}/mdev_supported_types/{type_id}/create", UUID)
    if used:
        hostdev = f"<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{UUID}'/></source>"
        host.ports.hypervisor.define(DESK % f"{hostdev}</hostdev>")
    message = f"T4-2Q {UUID} on GPU .* is unmanaged: another program made it"
    with unchanged(host), pytest.raises(Unmanaged, match=message) as raised:
        drop(host.ports, name)
    remove = f"mdevctl stop -u {UUID}; or echo 1 > /sys/bus/mdev/devices/{UUID}/remove"
    stop = f"virsh edit desk: remove the device with {UUID}; then " if used else ""
    assert (raised.value.status, raised.value.hint) == (3, stop + remove)


@pytest.mark.parametrize("name", [VF, "3b:00.4", "0000:3B:00.4"])
def test_a_function_of_another_program(host, name):
    host.ports.sysfs.write(f"/sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type", "469\n")
    with pytest.raises(Unmanaged, match=f"A100-5C {VF} on GPU 0000:3b:00.0 is unmanaged") as raised:
        drop(host.ports, name)
    assert raised.value.hint == f"echo 0 > /sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type"


def test_the_vgpu_of_a_vm_and_one_with_a_name(host):
    create(host.ports, request("A100-4C", name="vm"), start=False)
    with pytest.raises(InUse, match=f"A100-4C {VF} .* is the vGPU of vm") as raised:
        drop(host.ports, VF)
    assert raised.value.hint == f"vgpuctl detach-vgpu vm --vgpu {VF}"
    carrier = make(host.ports, name="spare").data.carrier
    with pytest.raises(Refused, match="is vGPU spare") as named:
        drop(host.ports, carrier)
    assert named.value.hint == "vgpuctl delete-vgpu spare"
