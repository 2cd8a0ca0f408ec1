# SPDX-License-Identifier: Apache-2.0
"""The commands that change VMs or GPUs, each on a small simulated host, and the VMs that another program acts on.

Size: a command is one line of a table, and its host and its call are read beside it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.faults import Watch
from tests.hosts import (
    Act,
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    operation,
    request,
    run_reconcile,
    set_vm,
    start,
    stop,
)
from tests.layouts import do as set_mode
from tests.partitions import act as partition
from tests.partitions import mig
from tests.partitions import small as one_gpu
from tests.schedulers import POOL, TWO_MS
from tests.schedulers import act as set_scheduler
from tests.schedulers import small as one_card
from vgpuctl.config.host_spec import HostSpec
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.model.caller import Caller, Limits, Rights
from vgpuctl.model.license import License
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.request import CloudInit, CloudInitFile, GuestSetup, NewDisk
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.adopt import adopt
from vgpuctl.operations.apply import apply_host
from vgpuctl.operations.attach import attach, detach
from vgpuctl.operations.desired_state import read_desired_state
from vgpuctl.operations.ensure_vm import ensure_vm
from vgpuctl.operations.ensure_vms import ensure_vms
from vgpuctl.operations.guest_setup import refresh_license
from vgpuctl.operations.moves import carry_out, make_room
from vgpuctl.operations.plans.move_order import VmLeave, VmMove
from vgpuctl.operations.power import delete_vm, reboot_vm
from vgpuctl.operations.prepare import prepare_vm
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.operations.resize_disk import resize_disk
from vgpuctl.operations.restore import restore_host
from vgpuctl.operations.save import save_vm
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

IMAGES = "images: [{path: /old.qcow2, size_gib: 20, firmware: both}, {path: /new.qcow2, size_gib: 10, firmware: both}]"
HEAD = "version: 1\nstorage: {pools: [{name: default}]}\nnetworks: [{name: default}]\n" + IMAGES + "\n"
HOSTS = {
    "vendor-vf": (HEAD + "gpus: [{model: A100, vfs: {total: 3, enabled: 3}}]\n", "A100-4C", "A100-5C"),
    "mdev-pf": (HEAD + "gpus: [{model: T4, profiles: [T4-2Q, T4-4Q]}]\n", "T4-2Q", "T4-4Q"),
    "mdev-vf": (
        HEAD + 'kernel: "5.14.0.el9"\ngpus: [{model: A16, profiles: [A16-2Q, A16-4Q], vfs: {total: 3, enabled: 3}}]\n',
        "A16-2Q",
        "A16-4Q",
    ),
    "sriov": (HEAD + 'gpus: [{address: "0000:86:00.0", model: Flex 170, vfs: {enabled: 3}}]\n', "0000:86:00.0", ""),
    "passthrough": (
        HEAD + 'gpus: [{address: "0000:d8:00.0", model: RTX 4090}, {address: "0000:d9:00.0", model: RTX 4090}]\n',
        "0000:d9:00.0",
        "",
    ),
}
"""For each kind of device: a host, the profile or GPU that its VMs get, and a second profile."""

TWO_GPUS = {
    "vendor-vf": ("{model: A100, vfs: {total: 4, enabled: 4}, profiles: [A100-20C, A100-40C]}", "A100-20C", "A100-40C"),
    "mdev-pf": ("{model: T4, profiles: [T4-8Q, T4-16Q]}", "T4-8Q", "T4-16Q"),
    "mdev-vf": ("{model: A16, vfs: {total: 4, enabled: 4}, profiles: [A16-8Q, A16-16Q]}", "A16-8Q", "A16-16Q"),
}
GPU, OTHER_GPU, GPU_OF_VFS = "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"
Second = Callable[[Host, str], object]
SEED = CloudInit(CloudInitFile("/root/user-data", "#cloud-config\na: 1\n"))


@dataclass(frozen=True)
class Case:
    """A command on a host that `prepared` creates. `targets`: the VMs that another program acts on, one at a time.

    `second`: the commands of another vgpuctl that run instead of virsh, each with the name of a VM.
    """

    command: str
    kind: str
    prepared: Callable[[Path], SimulatedHost]
    act: Act
    targets: tuple[str, ...] = ("vm",)
    second: Mapping[str, Second] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the command and the kind of device."""
        return f"{self.command} {self.kind}"


def asked(kind: str, name: str = "vm", **changes: object) -> VmRequest:
    """Return the request for a VM on a host of this kind: with a clone, a second disk and a seed."""
    more = {"image": "/old.qcow2", "disks": (NewDisk(1024),), "seed": SEED, **changes}
    if kind in ("sriov", "passthrough"):
        return request(mode=kind, gpu=HOSTS[kind][1], name=name, **more)
    return request(HOSTS[kind][1], name=name, vgpu_params=(("frame_rate_limiter", "0"),), **more)


def empty(directory: Path, kind: str) -> SimulatedHost:
    """Return a host without VMs."""
    return open_sim_host(directory, text=HOSTS[kind][0])


def with_vm(directory: Path, kind: str, *, on: bool, reboot: bool = False, **changes: object) -> SimulatedHost:
    """Return a host with a VM. With `reboot`, the host then reboots, so the VM's device must be created again."""
    host = empty(directory, kind)
    create(host.ports, asked(kind, **changes), start=on)
    if reboot:
        host.sim.reboot()
    return host.again()


def killed(
    directory: Path, kind: str, before: Callable[[Path, str], SimulatedHost], act: Act, call: str
) -> SimulatedHost:
    """Return a host on which a process ran `act` and was killed right after the call named `call`."""
    host = before(directory, kind)

    def die(number: int, done: str, args: object) -> None:
        if done == call:
            os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if not pid:
        try:
            act(Watch(after=die).watch(open_sim_host(directory, host.scenario).ports))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    return host.again()


def of_another(directory: Path, kind: str, *, on: bool) -> SimulatedHost:
    """Return a host with a VM that another program made with a vGPU."""
    text, profile, _ = HOSTS[kind]
    vm = f"vgpus: [{{profile: {profile}, vm: vm, running: {str(on).lower()}}}]"
    before, end, after = text.rpartition("}]")
    return open_sim_host(directory, text=f"{before}, {vm}{end}{after}")


def _adopt(ports: Host) -> Outcome:
    with operation(ports):
        return adopt(ports, context(), "vm")


def _create(ports: Host, kind: str, *, on: bool = True, **changes: object) -> Outcome:
    return create(ports, asked(kind, **changes), start=on)


def _many(ports: Host, kind: str) -> Outcome:
    names = ("vm", "vm-2")
    vm_request = asked(kind, name="vm")
    return ensure_vms(ports, context(), vm_request, names, start=True, parallel=1)


def _ensure(ports: Host, kind: str, state: str, **changes: object) -> Outcome:
    sources = dict.fromkeys(changes, "given")
    vm_request = replace(asked(kind, **changes), sources=sources)
    return ensure_vm(ports, context(), vm_request, state=state)


def _attach(ports: Host, kind: str) -> Outcome:
    return attach(ports, context(), request(HOSTS[kind][1], name="vm"))


def _detach(ports: Host) -> Outcome:
    return detach(ports, context(wait_seconds=5), "vm")


def _attach_gpu(ports: Host) -> Outcome:
    return attach(ports, context(), request(name="vm", mode="passthrough"))


def _detach_gpu(ports: Host) -> Outcome:
    gpus = (HOSTS["passthrough"][1],)
    return detach(ports, context(wait_seconds=5), "vm", gpus=gpus)


def _set_vm(ports: Host, kind: str, *, drain: bool) -> Outcome:
    wanted = request(HOSTS[kind][2], name="vm", vcpus=3, owner="ada")
    return set_vm(ports, wanted, "profile", "vcpus", "owner", drain=drain)


def _set_owner(ports: Host, name: str = "vm") -> Outcome:
    return set_vm(ports, request(name=name, owner="ada"), "owner")


def _delete_to_bin(ports: Host) -> Outcome:
    keeps = Caller(1001, "ada", Rights.OPERATOR, Limits(keep_deleted_days=14))
    return delete_vm(ports, replace(context(wait_seconds=5.0), caller=keeps), "vm", keep_disks=False)


def _prepare(ports: Host) -> Outcome:
    return prepare_vm(ports, context(wait_seconds=5), "vm", drain=True)


def _refresh(ports: Host, *, drain: bool) -> Outcome:
    return refresh_vm(ports, context(wait_seconds=5), "vm", "/new.qcow2", drain=drain)


def _clear_license(ports: Host) -> Outcome:
    return refresh_license(ports, context(wait_seconds=5), "vm", clear=True)


def _resize(ports: Host) -> Outcome:
    return resize_disk(ports, context(wait_seconds=5), "vm", 30 << 10, "vda")


def _reboot(ports: Host) -> Outcome:
    with operation(ports):
        return reboot_vm(ports, context(), "vm", force=False)


def _stop(ports: Host, *, force: bool) -> Outcome:
    return stop(ports, "vm", force=force)


def _save(ports: Host) -> Outcome:
    return save_vm(ports, context(), "vm")


def _apply(ports: Host) -> Outcome:
    desired = read_desired_state(ports, None, ("gpus[0000:86:00.0].mode=sriov", "gpus[0000:86:00.0].vfs=2"))
    return apply_host(ports, context(), desired, drain=True)


def _restore(ports: Host) -> Outcome:
    return restore_host(ports, context(wait_seconds=5.0), HostSpec(1))


def two_gpus(directory: Path, kind: str, *, on: bool, locked_out: bool) -> SimulatedHost:
    """Return two GPUs: one VM on each, and both fit on one; with `locked_out`, VMs in each other's way."""
    gpu, small, large = TWO_GPUS[kind]
    kernel = 'kernel: "5.14.0.el9"\n' if kind == "mdev-vf" else ""
    host = open_sim_host(directory, text=f"version: 1\n{kernel}gpus:\n  - {gpu}\n  - {gpu}\n")
    profiles = (small, large, small) if locked_out else (small, small, small)
    names = ("vm", "vm-2", "vm-3") if locked_out else ("gone", "vm", "vm-2")
    for name, profile in zip(names, profiles, strict=True):
        create(host.ports, request(profile, name=name), start=on)
    if not locked_out:
        delete(host.ports, "gone")
    return host.again()


def _room(ports: Host, kind: str) -> Outcome:
    return make_room(ports, context(), [(TWO_GPUS[kind][2], 1)], max_moves=None)


def _swap(ports: Host) -> None:
    """Move each VM to the other GPU: the second one gives up its place, the others move, and it follows."""
    snapshot = observe(ports, ReadScope(types=True))
    one, other = (gpu.address for gpu in snapshot.gpus)
    moves: list[VmMove] = []
    for vm in sorted(snapshot.vms, key=lambda vm: (vm.name == "vm-2", vm.name)):
        assert vm.record is not None
        (vgpu,) = vm.record.vgpus
        moves.append(VmMove(vm, vgpu, other if vgpu.gpu == one else one, waits=vm.name == "vm-2"))
    carry_out(ports, context(), (VmLeave(moves[-1].vm, moves[-1].vgpu), *moves))


def _flex(directory: Path, *, on: bool) -> SimulatedHost:
    host = empty(directory, "sriov")
    for name in ("vm", "vm-2"):
        create(host.ports, asked("sriov", name=name), start=on)
    return host.again()


def _card(directory: Path, *, mixed: bool) -> SimulatedHost:
    host = one_gpu(directory, "H100", **({} if mixed else {"more": "mig: [3g.40gb, 1g.10gb]"}))
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text("version: 1\n")
    create(host.ports, request("H100-10C" if mixed else "H100-1-10C", name="vm"))
    return host.again()


def _scheduled(directory: Path) -> SimulatedHost:
    host = one_card(directory, more=POOL)
    create(host.ports, request("A100-4C", name="vm"))
    return host.again()


def _busy_gpu(directory: Path, gpus: str, profile: str, more: str = "") -> SimulatedHost:
    """Return a host whose first GPU has two VMs with a disk: `vm` runs, `vm-2` is off."""
    host = open_sim_host(directory, text=f"{HEAD}{more}gpus: [{gpus}]\n")
    for name in ("vm", "vm-2"):
        vm_request = request(profile, name=name, gpu=GPU, disks=(NewDisk(1024),))
        create(host.ports, vm_request, start=name == "vm")
    return host.again()


def _apply_scheduler(ports: Host) -> Outcome:
    desired = read_desired_state(ports, None, (f"gpus[{GPU}].scheduler.policy=equal_share",))
    return apply_host(ports, context(), desired, drain=True)


def _second(profile: str | None) -> dict[str, Second]:
    """Return what another vgpuctl does. `profile`: the one that its set-vm takes from the other GPU."""

    def in_operation(act: Callable[[Host, str], object]) -> Second:
        def run(ports: Host, name: str) -> None:
            with operation(ports):
                act(ports, name)

        return run

    commands: dict[str, Second] = {
        "delete-vm": delete,
        "set-vm --owner": _set_owner,
        "resize-disk": in_operation(
            lambda ports, name: resize_disk(ports, context(wait_seconds=5), name, 30 << 10, "vda")
        ),
    }
    if profile is not None:
        moved = request(profile, gpu=OTHER_GPU)
        commands |= {
            "detach-vgpu": in_operation(lambda ports, name: detach(ports, context(wait_seconds=5), name)),
            "set-vm --profile": lambda ports, name: set_vm(ports, replace(moved, name=name), "profile", "gpu"),
        }
    return commands


def two_commands() -> Iterator[Case]:
    """Yield every command that changes a GPU, while another vgpuctl changes or removes the VMs on it."""

    def case(command: str, kind: str, gpu: str, profiles: tuple[str, str], act: Act, more: str = "") -> Case:
        gpus = f'{{address: "{GPU}", {gpu}}}, {{address: "{OTHER_GPU}", {gpu}}}'
        host = partial(_busy_gpu, gpus=gpus, profile=profiles[0], more=more)
        return Case(command, kind, host, act, ("vm", "vm-2"), _second(profiles[1]))

    schedule = partial(set_scheduler, gpu=GPU, wanted=SchedulerSpec(SchedulerPolicy.EQUAL_SHARE), drain=True)
    a100, kernel = "model: A100, vfs: {total: 3, enabled: 3}", 'kernel: "5.14.0.el9"\n'
    a16 = "model: A16, profiles: [A16-2Q, A16-4Q], vfs: {total: 3, enabled: 3}"
    h100 = "model: H100, mig: [1g.10gb, 1g.10gb, 1g.10gb, 3g.40gb]"
    mig_act = partial(partition, gpu=GPU, wanted=mig("4g.40gb", "1g.10gb", "1g.10gb", "1g.10gb"), drain=True)
    yield case("set-scheduler --drain", "vendor-vf", a100, ("A100-4C", "A100-5C"), schedule)
    yield case("set-scheduler --drain", "mdev-pf", "model: T4, profiles: [T4-2Q, T4-4Q]", ("T4-2Q", "T4-4Q"), schedule)
    yield case("set-scheduler --drain", "mdev-vf", a16, ("A16-2Q", "A16-4Q"), schedule, kernel)
    yield case("apply --drain (scheduler)", "vendor-vf", a100, ("A100-4C", "A100-5C"), _apply_scheduler)
    yield case("set-mig --drain", "vendor-vf", h100, ("H100-1-10C", "H100-3-40C"), mig_act)
    mixed_act = partial(partition, gpu=GPU, mixed=True, drain=True)
    yield case("set-mixed-size --drain", "vendor-vf", "model: H100", ("H100-10C", "H100-20C"), mixed_act)
    flex, drain = partial(_flex, on=True), partial(set_mode, gpu=GPU_OF_VFS, mode="sriov", vfs=2, drain=True)
    yield Case("set-mode --drain", "sriov", flex, drain, ("vm", "vm-2"), _second(None))
    yield Case("apply --drain", "sriov", flex, _apply, ("vm", "vm-2"), _second(None))


def _of_kind(kind: str) -> Iterator[Case]:
    """Yield the cases that every kind of device has."""
    reserve = {"reserve": "running"}
    on, off = partial(with_vm, kind=kind, on=True), partial(with_vm, kind=kind, on=False)
    off_reserve = partial(off, **reserve)
    yield Case("create-vm", kind, partial(empty, kind=kind), partial(_create, kind=kind))
    yield Case("create-vm --no-start", kind, partial(empty, kind=kind), partial(_create, kind=kind, on=False))
    yield Case("create-vm --reserve running", kind, partial(empty, kind=kind), partial(_create, kind=kind, **reserve))
    if kind != "passthrough":
        yield Case("create-vm --count 2", kind, partial(empty, kind=kind), partial(_many, kind=kind), ("vm", "vm-2"))
    yield Case("ensure-vm (new)", kind, partial(empty, kind=kind), partial(_ensure, kind=kind, state="started"))
    yield Case("ensure-vm (memory)", kind, off, partial(_ensure, kind=kind, state="started", memory_mib=2048))
    yield Case("start-vm", kind, partial(off, reboot=True), partial(start, name="vm"))
    yield Case("start-vm --reserve running", kind, off_reserve, partial(start, name="vm"))
    yield Case("stop-vm", kind, on, partial(_stop, force=False))
    yield Case("stop-vm --reserve running", kind, partial(on, **reserve), partial(_stop, force=True))
    yield Case("reboot-vm", kind, on, _reboot)
    yield Case("delete-vm", kind, on, partial(delete, name="vm"))
    yield Case("delete-vm (off)", kind, off, partial(delete, name="vm"))
    yield Case("delete-vm (off, to the bin)", kind, off, _delete_to_bin)
    yield Case("delete-vm --reserve running", kind, off_reserve, partial(delete, name="vm"))
    yield Case("refresh-vm", kind, off, partial(_refresh, drain=False))
    yield Case("refresh-vm --drain", kind, on, partial(_refresh, drain=True))
    yield Case("prepare-vm --drain", kind, on, _prepare)
    yield Case("set-vm --owner (on)", kind, on, _set_owner)
    yield Case("set-vm --owner (off)", kind, off, _set_owner)
    yield Case("resize-disk (on)", kind, on, _resize)
    yield Case("resize-disk (off)", kind, off, _resize)
    yield Case("restore-host", kind, partial(off, reboot=True), _restore)
    if kind == "vendor-vf":
        seed = CloudInit(CloudInitFile("/user-data", "#cloud-config\n"), setup=GuestSetup(License("cad", "a.b.c")))
        for state, prepare in (("on", on), ("off", off)):
            licensed = partial(prepare, seed=seed, license_name="cad")
            yield Case(f"refresh-license --clear ({state})", kind, licensed, _clear_license)
    create_one = partial(_create, kind=kind)
    for call, act, before in (
        ("storage.create_volume", create_one, empty),
        ("hypervisor.set_record", partial(delete, name="vm"), partial(with_vm, on=False)),
        ("hypervisor.redefine", partial(_refresh, drain=False), partial(with_vm, on=False)),
    ):
        host = partial(killed, kind=kind, before=before, act=act, call=call)
        what = {"storage.create_volume": "half made", "hypervisor.set_record": "half removed"}.get(
            call, "half refreshed"
        )
        yield Case(f"reconcile-host ({what})", kind, host, run_reconcile)


def _of_vgpus(kind: str) -> Iterator[Case]:
    """Yield the cases that only vGPUs have."""
    on, off = partial(with_vm, kind=kind, on=True), partial(with_vm, kind=kind, on=False)
    set_reserve = partial(_ensure, kind=kind, state="present", reserve="running")
    yield Case("save-vm", kind, partial(with_vm, kind=kind, on=True), _save)
    yield Case("attach-vgpu", kind, on, partial(_attach, kind=kind))
    yield Case("attach-vgpu (off)", kind, off, partial(_attach, kind=kind))
    yield Case("adopt", kind, partial(of_another, kind=kind, on=True), _adopt)
    yield Case("adopt (off)", kind, partial(of_another, kind=kind, on=False), _adopt)
    yield Case("detach-vgpu", kind, on, _detach)
    yield Case("detach-vgpu (off)", kind, off, _detach)
    yield Case("set-vm (off)", kind, off, partial(_set_vm, kind=kind, drain=False))
    yield Case("set-vm --drain", kind, on, partial(_set_vm, kind=kind, drain=True))
    yield Case("ensure-vm (reserve)", kind, off, set_reserve)
    for is_on in (True, False):
        state = "" if is_on else " (off)"
        two = partial(two_gpus, kind=kind, on=is_on)
        can_share, must_swap = partial(two, locked_out=False), partial(two, locked_out=True)
        yield Case(f"move-vms{state}", kind, can_share, partial(_room, kind=kind), ("vm", "vm-2"))
        yield Case(f"move-vms, one waits{state}", kind, must_swap, _swap, ("vm", "vm-2"))


def all_cases() -> tuple[Case, ...]:
    """Return every command on every kind of device that it supports."""
    cases = [case for kind in HOSTS for case in _of_kind(kind)]
    cases += [case for kind in TWO_GPUS for case in _of_vgpus(kind)]
    whole = partial(with_vm, kind="passthrough")
    cases += [
        Case("attach-gpu (off)", "passthrough", partial(whole, on=False), _attach_gpu),
        Case("detach-gpu", "passthrough", partial(whole, on=True), _detach_gpu),
        Case("detach-gpu (off)", "passthrough", partial(whole, on=False), _detach_gpu),
    ]
    flex, gpu = partial(_flex, on=True), "0000:86:00.0"
    drain = partial(set_mode, gpu=gpu, mode="sriov", vfs=2, drain=True)
    cases += [
        Case("set-mode --drain", "sriov", flex, drain, ("vm", "vm-2")),
        Case("set-mode", "sriov", partial(_flex, on=False), partial(drain, drain=False), ("vm",)),
        Case("apply --drain", "sriov", flex, _apply, ("vm", "vm-2")),
        Case(
            "set-mig --drain",
            "vendor-vf",
            partial(_card, mixed=False),
            partial(partition, gpu="0000:3b:00.0", wanted=mig("4g.40gb", "1g.10gb"), drain=True),
        ),
        Case(
            "set-mixed-size --drain",
            "vendor-vf",
            partial(_card, mixed=True),
            partial(partition, gpu="0000:3b:00.0", mixed=True, drain=True),
        ),
        Case("set-scheduler --drain", "vendor-vf", _scheduled, partial(set_scheduler, wanted=TWO_MS, drain=True)),
    ]
    return tuple(cases)
