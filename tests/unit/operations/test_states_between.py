# SPDX-License-Identifier: Apache-2.0
"""Each state of libvirt has an answer in every command: a table of states and commands.

No command stops a VM that was undefined while it runs for a restart, and delete-vm removes it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import (
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    operation,
    picture,
    request,
    set_vm,
    start,
    stop,
)
from tests.layouts import FLEX, do, drained
from tests.meanwhile import unchanged, with_calls
from tests.reserving_vms import vm_of
from tests.unit.doctor.check_results import run_check
from vgpuctl.errors import Refused, VgpuctlError
from vgpuctl.host.virt.constants import VM_STATES
from vgpuctl.model.vm import VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.ensure_vm import ensure_vm
from vgpuctl.operations.power import reboot_vm
from vgpuctl.operations.queries import list_vms
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.operations.wait import wait
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
RESUME, WAKE = "virsh resume vm", "virsh dompmwakeup vm"
CRASHED = "vgpuctl stop-vm vm --force, then vgpuctl start-vm vm"
WAIT = "vgpuctl wait vm --for off, then vgpuctl start-vm vm"
REASON = "virsh domstate --reason vm"


def in_state(ports: Host, state: VmState) -> Host:
    """Return the host with a hypervisor that shows a running VM in another state."""
    real = ports.hypervisor

    def shown(domain: Any) -> Any:
        return replace(domain, state=state) if domain and domain.state is VmState.RUNNING else domain

    return with_calls(
        ports,
        "hypervisor",
        domains=lambda: tuple(map(shown, real.domains())),
        find_domain=lambda name: shown(real.find_domain(name)),
    )


def with_vm(tmp_path: Path, state: VmState) -> tuple[SimulatedHost, Host]:
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm", image=IMAGE))
    return host, in_state(host.ports, state)


def ensure(state: str) -> Callable[[Host], object]:
    def run(ports: Host) -> object:
        wanted = request("A100-4C", name="vm", image=IMAGE)
        with operation(ports):
            return ensure_vm(ports, context(wait_seconds=5), wanted, state=state)

    return run


def refresh(ports: Host, name: str = "vm") -> object:
    with operation(ports):
        return refresh_vm(ports, context(wait_seconds=5), name, IMAGE, drain=True)


def change(ports: Host) -> object:
    with operation(ports):
        return set_vm(ports, request("A100-5C", name="vm"), drain=True)


COMMANDS: dict[str, Callable[[Host], object]] = {
    "start": lambda ports: start(ports, "vm"),
    "ensure started": ensure("started"),
    "reboot": lambda ports: reboot_vm(ports, context(wait_seconds=5), "vm", force=False),
    "wait running": lambda ports: wait(ports, context(), ["vm"], "running", 2),
    "stop": lambda ports: stop(ports, "vm", force=False),
    "ensure stopped": ensure("stopped"),
    "refresh --drain": refresh,
    "set-vm --drain": change,
}
HINTS = {
    VmState.PAUSED: RESUME,
    VmState.PMSUSPENDED: WAKE,
    VmState.CRASHED: CRASHED,
    VmState.SHUTTING_DOWN: WAIT,
    VmState.UNKNOWN: REASON,
}
OFF_HINTS = {
    VmState.PAUSED: f"{RESUME}, then vgpuctl stop-vm vm; or vgpuctl stop-vm vm --force",
    VmState.PMSUSPENDED: f"{WAKE}, then vgpuctl stop-vm vm; or vgpuctl stop-vm vm --force",
    VmState.CRASHED: "vgpuctl stop-vm vm --force",
}
TO_RUN = ("start", "ensure started", "reboot", "wait running")
TO_STOP = ("stop", "ensure stopped", "refresh --drain", "set-vm --drain")
ANSWERS = [(state, command, hint) for state, hint in HINTS.items() for command in TO_RUN] + [
    (state, command, hint) for state, hint in OFF_HINTS.items() for command in TO_STOP
]


def test_the_table_has_every_state_of_libvirt():
    assert set(VM_STATES.values()) | {VmState.UNKNOWN} == set(VmState)
    assert set(HINTS) | {VmState.RUNNING, VmState.STOPPED} == set(VmState)


@pytest.mark.parametrize(("state", "command", "hint"), ANSWERS)
def test_a_state_between_is_refused_with_the_command_that_helps(tmp_path, state, command, hint):
    host, ports = with_vm(tmp_path, state)
    with unchanged(host), pytest.raises(VgpuctlError) as raised:
        COMMANDS[command](ports)
    assert str(state) in raised.value.message
    assert str(raised.value.hint).startswith(hint)
    assert raised.value.left == []
    assert ports.claims.drained_vms() == ()


@pytest.mark.parametrize("command", TO_STOP[:2])
@pytest.mark.parametrize("state", [VmState.SHUTTING_DOWN, VmState.UNKNOWN])
def test_a_vm_that_may_react_is_asked_to_shut_down(tmp_path, state, command):
    host, ports = with_vm(tmp_path, state)
    COMMANDS[command](ports)
    assert host.ports.hypervisor.find_domain("vm").state is VmState.STOPPED


@pytest.mark.parametrize("state", HINTS)
def test_force_and_delete_work_in_every_state(tmp_path, state):
    host, ports = with_vm(tmp_path, state)
    stop(ports, "vm")
    assert host.ports.hypervisor.find_domain("vm").state is VmState.STOPPED
    host.ports.hypervisor.start(host.ports.hypervisor.find_domain("vm").uuid)
    questions: list[str] = []
    delete(ports, "vm", confirm=lambda question, details: questions.append(question))
    assert questions == [f"Delete VM vm? It is {state}."]
    assert host.ports.hypervisor.find_domain("vm") is None


@pytest.mark.parametrize("state", HINTS)
def test_list_and_doctor_show_it(tmp_path, state):
    _, ports = with_vm(tmp_path, state)
    assert [vm.state for vm in list_vms(ports, context()).data] == [state]
    finding = run_check("vm-states", observe(ports, ReadScope()))
    if state in OFF_HINTS:
        assert (finding.verdict, finding.evidence[0], finding.fix) == ("warn", f"VM vm is {state}", HINTS[state])
    else:
        assert finding.verdict == "ok"


def forget(host: SimulatedHost, name: str) -> None:
    """Do what `virsh undefine` does to a running VM."""
    host.sim.hypervisor.make_transient(vm_of(host, name).uuid)


@pytest.mark.parametrize(
    "act",
    [
        lambda ports: do(ports, FLEX, "sriov", 6, drain=True),
        lambda ports: do(ports, FLEX, "sriov", 6, drain=True, dry_run=True),
        lambda ports: refresh(ports, "one"),
        lambda ports: stop(ports, "one", force=False),
    ],
    ids=["drain", "dry run", "refresh", "stop"],
)
def test_a_vm_without_a_definition_is_not_stopped_for_a_restart(tmp_path: Path, act: Callable[[Host], object]) -> None:
    host = drained(tmp_path)
    for name in ("two", "one"):
        forget(host, name)
    with unchanged(host), pytest.raises(Refused, match=r"^one(, two)?: running without a definition") as raised:
        act(host.ports)
    assert raised.value.facts["vms"] in (["one"], ["one", "two"])
    assert "virsh dumpxml --inactive --security-info one > FILE, then virsh define FILE" in raised.value.hint


def test_delete_vm_removes_all_of_a_vm_without_a_definition(tmp_path: Path) -> None:
    host = drained(tmp_path)
    forget(host, "one")
    delete(host.ports, "one")
    delete(host.ports, "two")
    left, fresh = picture(host), picture(open_sim_host(tmp_path / "fresh", "mixed"))
    assert (left.domains, left.claims, left.running) == (fresh.domains, fresh.claims, fresh.running)
    assert left.files == fresh.files


def test_one_that_is_defined_again_is_stopped_and_started_as_any_other(tmp_path: Path) -> None:
    host = drained(tmp_path)
    vm = vm_of(host, "one")
    record = host.ports.hypervisor.find_domain(vm.uuid)
    forget(host, "one")
    host.ports.hypervisor.define(record.xml)
    stop(host.ports, "one", force=False)
    start(host.ports, "one")
    assert vm_of(host, "one") == vm
