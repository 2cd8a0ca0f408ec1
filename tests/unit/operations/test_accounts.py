# SPDX-License-Identifier: Apache-2.0
"""A VM has the account of whoever made it; other accounts read it, and change nothing of it, however they race."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.callers import ADA, BOB, FLEET, OPERATOR, ROOT, VIEWER, host_of
from tests.hosts import SimulatedHost, context, create, open_sim_host, request
from tests.meanwhile import on_call, unchanged
from vgpuctl.domain.record import record_from_xml, record_to_xml
from vgpuctl.errors import Busy, InvalidInput, NotAllowed, NotFound, NotYours, SomeTargetsFailed, VgpuctlError
from vgpuctl.library import GpuHost
from vgpuctl.model.caller import Caller
from vgpuctl.model.port_values import AuditQuery
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.transaction import Transaction
from vgpuctl.value import replace

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
OTHER_PROGRAMS = """<domain type='kvm'><name>theirs</name><uuid>11111111-2222-4333-8444-555555555555</uuid>
<memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>
<controller type='pci' index='0' model='pcie-root'/></devices></domain>"""
SPEC: Any = {"profile": "A100-4C", "memory": "1GiB"}


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """A host with VMs of ada: `on` runs, `off` is off; and `roots`, which root made."""
    host = open_sim_host(tmp_path)
    ada = host_of(host, ADA)
    ada.create_vm("on", image=IMAGE, **SPEC)
    ada.create_vm("off", start=False, **SPEC)
    host_of(host, None).create_vm("roots", start=False, **SPEC)
    return host


def account_of(host: SimulatedHost, name: str) -> str | None:
    return host_of(host, None).show_vm(name).data.account


@pytest.mark.parametrize(
    ("caller", "account"), [(None, None), (ROOT, None), (ADA, "ada"), (OPERATOR, "olga"), (FLEET, "fleet")]
)
def test_a_vm_has_the_account_of_whoever_made_it(tmp_path: Path, caller: Caller | None, account: str | None) -> None:
    host = open_sim_host(tmp_path)
    host_of(host, caller).create_vm("vm", **SPEC)
    assert account_of(host, "vm") == account
    host_of(host, caller).create_vms("many-{}", 2, **SPEC)
    assert [(vm.name, vm.account) for vm in host_of(host, VIEWER).list_vms().data] == [
        ("many-1", account),
        ("many-2", account),
        ("vm", account),
    ]


def test_no_request_sets_the_account(host: SimulatedHost, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: new\nprofile: A100-4C\naccount: bob\n")
    ada: Any = host_of(host, ADA)
    tries: tuple[Callable[[], object], ...] = (
        lambda: ada.create_vm("new", account="bob", **SPEC),
        lambda: ada.ensure_vm(file=str(spec)),
        lambda: ada.set_vm("off", account="bob"),
    )
    for act in tries:
        with unchanged(host), pytest.raises(InvalidInput, match="account"):
            act()
    create(host.ports, replace(request("A100-4C", name="forged"), account="bob"))
    assert account_of(host, "forged") is None


def test_the_account_stays_through_every_change(host: SimulatedHost) -> None:
    for caller in (ADA, OPERATOR, None):
        by = host_of(host, caller)
        by.set_vm("off", memory="2GiB", owner=f"team-{caller and caller.uid}", labels={"a": str(caller and caller.uid)})
        by.ensure_vm("off", state="started", **{**SPEC, "memory": "2GiB"})
        by.stop_vm("off", force=True)
        by.attach_vgpu("off", profile="A100-4C")
        by.detach_vgpu("off", [by.show_vm("off").data.vgpus[1].carrier])
        by.refresh_vm("on", IMAGE, drain=True)
        by.reboot_vm("on")
    assert (account_of(host, "off"), account_of(host, "on")) == ("ada", "ada")


def test_a_record_without_an_account_is_roots_and_is_written_as_before() -> None:
    before = '<vm xmlns="urn:vgpuctl:1" state="ready" vm-uuid="u" machine-id="m" reserve="always"><spec>{}</spec></vm>'
    record = record_from_xml(before)
    assert record.account is None
    assert record_to_xml(record) == before
    assert record_from_xml(record_to_xml(replace(record, account="ada"))).account == "ada"


CHANGES: dict[str, Callable[[GpuHost, str], object]] = {
    "start-vm": lambda by, vm: by.start_vm(vm),
    "stop-vm": lambda by, vm: by.stop_vm(vm, force=True),
    "reboot-vm": lambda by, vm: by.reboot_vm(vm),
    "delete-vm": lambda by, vm: by.delete_vm(vm),
    "set-vm": lambda by, vm: by.set_vm(vm, memory="2GiB"),
    "set-vm, drained": lambda by, vm: by.set_vm(vm, memory="2GiB", drain=True),
    "set-vm, labels": lambda by, vm: by.set_vm(vm, owner="me"),
    "ensure-vm": lambda by, vm: by.ensure_vm(vm),
    "ensure-vm absent": lambda by, vm: by.ensure_vm(vm, state="absent"),
    "ensure-vm stopped": lambda by, vm: by.ensure_vm(vm, state="stopped"),
    "ensure-vm, labels": lambda by, vm: by.ensure_vm(vm, owner="me"),
    "attach-vgpu": lambda by, vm: by.attach_vgpu(vm, profile="A100-4C"),
    "attach-gpu": lambda by, vm: by.attach_gpu(vm, gpus=1),
    "detach-vgpu": lambda by, vm: by.detach_vgpu(vm),
    "detach-gpu": lambda by, vm: by.detach_gpu(vm, "0000:3b:00.0"),
    "resize-disk": lambda by, vm: by.resize_disk(vm, "500GiB"),
    "refresh-vm": lambda by, vm: by.refresh_vm(vm, IMAGE, drain=True),
    "refresh-vm from an image": lambda by, vm: by.refresh_vm(vm, IMAGE, from_image="/srv/images/other.qcow2"),
    "show-console": lambda by, vm: by.show_console(vm),
    "show-address": lambda by, vm: by.show_address(vm),
    "wait for the guest": lambda by, vm: by.wait(vm, event="guest", timeout_seconds=0),
    "wait for an address": lambda by, vm: by.wait(vm, event="address", timeout_seconds=0),
}


@pytest.mark.parametrize(
    ("vm", "whose", "caller"), [("on", "ada's", BOB), ("off", "ada's", FLEET), ("roots", "root's", ADA)]
)
def test_another_accounts_vm_is_left_alone(host: SimulatedHost, vm: str, whose: str, caller: Caller) -> None:
    by, uuid = host_of(host, caller), host_of(host, None).show_vm(vm).data.uuid
    for act in CHANGES.values():
        for named in (vm, uuid):
            with unchanged(host), pytest.raises(NotYours, match=f"{vm} is {whose}, and {caller.account} may not") as no:
                act(by, named)
            assert (no.value.code, no.value.status, no.value.facts["vm"]) == ("not-yours", 3, vm)
            assert f"{caller.account}: operator" in str(no.value.hint)


def test_several_vms_are_not_ensured_where_one_is_anothers(host: SimulatedHost) -> None:
    host_of(host, ADA).create_vm("pool-1", start=False, **SPEC)
    with unchanged(host), pytest.raises(NotYours, match="pool-1 is ada's"):
        host_of(host, BOB).create_vms("pool-{}", 2, start=False, **SPEC)


def test_a_batch_leaves_others_vms_alone_and_changes_ones_own(host: SimulatedHost) -> None:
    bob = host_of(host, BOB)
    bob.create_vm("bobs", **SPEC)
    with pytest.raises(SomeTargetsFailed) as failed:
        bob.for_each("delete-vm", ["bobs", "on"], lambda by, name: by.delete_vm(name))
    assert failed.value.status == 3
    assert {vm.name for vm in bob.list_vms().data} == {"off", "on", "roots"}


def test_a_dry_run_of_anothers_vm_is_refused_too(host: SimulatedHost) -> None:
    with pytest.raises(NotYours):
        host_of(host, BOB).delete_vm("on", dry_run=True)


@pytest.mark.parametrize("caller", [ADA, OPERATOR, ROOT, None], ids=["owner", "operator", "root", "without the agent"])
def test_who_may_change_it_does(host: SimulatedHost, caller: Caller | None) -> None:
    by = host_of(host, caller)
    assert by.show_console("on").data.name == "on"
    by.start_vm("off")
    by.stop_vm("off", force=True)
    assert by.delete_vm("off").changed


def test_roots_vm_is_an_operators_and_no_members(host: SimulatedHost) -> None:
    assert host_of(host, OPERATOR).start_vm("roots").changed
    with pytest.raises(NotYours, match="roots is root's"):
        host_of(host, ADA).stop_vm("roots")


def test_a_vm_of_another_program_is_roots(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    host.ports.hypervisor.define(OTHER_PROGRAMS)
    for caller in (ADA, OPERATOR):
        with unchanged(host), pytest.raises(NotYours, match="theirs was not created by vgpuctl: it is root's"):
            host_of(host, caller).attach_vgpu("theirs", profile="A100-4C")
    host_of(host, ROOT).attach_vgpu("theirs", profile="A100-4C")
    with pytest.raises(NotYours, match="theirs was not created by vgpuctl"):
        host_of(host, OPERATOR).detach_vgpu("theirs")


def test_everything_is_read_by_everybody(host: SimulatedHost) -> None:
    for caller in (BOB, FLEET, VIEWER):
        by = host_of(host, caller)
        assert by.show_vm("on").data.account == "ada"
        assert by.wait("on", event="running", timeout_seconds=0).data[0].state == "running"
        assert len(by.list_vgpus().data) == 3


def test_a_viewer_makes_nothing_and_changes_nothing(host: SimulatedHost) -> None:
    by = host_of(host, VIEWER)
    for act in (
        lambda: by.create_vm("new", **SPEC),
        lambda: by.create_vm("new", dry_run=True, **SPEC),
        lambda: by.start_vm("off"),
        lambda: by.delete_vm("on"),
        lambda: by.create_vgpu("lab", profile="A100-4C"),
        lambda: by.cordon("A100"),
        by.reconcile_host,
    ):
        with unchanged(host), pytest.raises(NotAllowed, match="vera may look at this host"):
            act()


@pytest.mark.parametrize("name", [name for name in CHANGES if not name.startswith(("show", "wait"))])
def test_a_vm_that_is_deleted_and_made_again_by_another_account_meanwhile_is_left_alone(
    tmp_path: Path, name: str
) -> None:
    """Whatever bob's operation does first, ada's new VM of the same name stays as she made it."""
    swaps = 0
    for call in ("hypervisor.domains", "hypervisor.find_domain"):
        for number in (1, 2):
            host = open_sim_host(tmp_path / f"{call}{number}")
            host_of(host, BOB).create_vm("vm", image=IMAGE, start=name in ("stop-vm", "reboot-vm"), **SPEC)
            other = host.again()
            made: list[Any] = []

            def swap(other: SimulatedHost = other, made: list[Any] = made) -> None:
                root = host_of(other, None)
                with suppress(Busy, NotFound):  # bob's operation works on it, or has deleted it
                    root.delete_vm("vm")
                if root.list_vms().data:
                    return
                host_of(other, ADA).create_vm("vm", image=IMAGE, start=False, **SPEC)
                made.append(root.show_vm("vm").data)

            ports = on_call(open_sim_host(tmp_path / f"{call}{number}").ports, call, swap, nth=number)
            with suppress(VgpuctlError):
                CHANGES[name](host_of(host, BOB, ports), "vm")
            swaps += len(made)
            if made:
                assert host_of(other, None).show_vm("vm").data == made[0], (name, call, number)
    assert swaps


def test_a_take_over_looks_whose_vm_it_is(host: SimulatedHost) -> None:
    snapshot = observe(host.ports, ReadScope())
    vm = next(vm for vm in snapshot.vms if vm.name == "off")
    assert vm.record is not None
    bobs = replace(context(), caller=BOB)
    with unchanged(host), pytest.raises(NotYours), Transaction(host.ports, bobs) as tx:
        tx.take_over_vm(vm, vm.record, ReadScope())


def test_the_audit_entry_names_the_caller_and_what_he_told(host: SimulatedHost) -> None:
    claimed = replace(ADA, address="10.0.0.7\nVGPUCTL_UID=0", on_behalf_of="eve\x1b[31m" + "x" * 500)
    host_of(host, claimed).start_vm("off")
    with pytest.raises(NotFound):
        host_of(host, claimed).start_vm("a\nb\x1b[2J")
    entry, failed = host.sim.audit.read_entries(AuditQuery(100)).entries[-2:]
    assert (entry.uid, entry.user, entry.account, entry.via) == (1001, "ada", "ada", "agent")
    assert (entry.login_uid, entry.sudo_user) == (None, None)
    assert entry.address == "10.0.0.7?VGPUCTL_UID=0"
    assert entry.on_behalf_of is not None
    assert entry.on_behalf_of.startswith("eve?[31mx")
    assert len(entry.on_behalf_of) == 200
    texts = (failed.arguments, failed.message or "", *failed.vms)
    assert all(character.isprintable() for text in texts for character in text)
    (shown,) = host_of(host, VIEWER).log(lines=1, failed=True).data
    assert (shown.user, shown.uid) == ("ada", 1001)
