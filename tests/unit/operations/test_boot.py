# SPDX-License-Identifier: Apache-2.0
"""The boot unit lets libvirt start when GPUs are not ready in time, and starts the VMs that libvirt could not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from tests.hosts import EagerClock, SimulatedHost, context, create, open_sim_host, request
from tests.meanwhile import with_calls
from vgpuctl.config.host_spec import BootSpec, GpuSpec, HostSpec
from vgpuctl.errors import Failed, LibvirtFailed
from vgpuctl.host.absent import AbsentHypervisor
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vm import VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.restore import restore_host
from vgpuctl.value import replace

GPU, LATE_VF = "0000:3b:00.0", "0000:3b:00.5"
DRIVER = "/sys/bus/pci/drivers/nvidia"
BRIEF = HostSpec(1, boot=BootSpec(hold_libvirt_seconds=3))
AUTOSTART = "/etc/libvirt/qemu/autostart"


class Scheduled(EagerClock):
    """A clock that runs each action at its second, whichever code waits: like timers of another thread."""

    def __init__(self, after: float) -> None:
        super().__init__()
        self.begun = self.seconds
        self.act = lambda: None
        self.due = [(after, lambda: self.act())]

    def sleep(self, seconds: float) -> None:
        end = self.seconds + seconds
        while coming := sorted((at, number) for number, (at, _) in enumerate(self.due) if self.begun + at <= end):
            at, number = coming[0]
            self.seconds = max(self.seconds, self.begun + at)
            self.due.pop(number)[1]()
        self.seconds = end


@dataclass
class ClockTimer:
    """A timer on that clock; one of zero seconds fires at once."""

    clock: Scheduled
    seconds: float
    function: Callable[[], None]

    def start(self) -> None:
        self.clock.due.append((self.seconds, self.function))
        self.clock.sleep(0)

    def cancel(self) -> None:
        self.clock.due = [one for one in self.clock.due if one[1] != self.function]


class Boot:
    """A host after a boot, as the unit sees it: libvirt answers once systemd gets READY, and starts its VMs."""

    def __init__(
        self, host: SimulatedHost, clock: Scheduled, autostart: tuple[str, ...], *, waits: bool = True
    ) -> None:
        self.host, self.clock, self.autostart, self.waits = host, clock, autostart, waits
        self.ready_after: list[float] = []
        self.hypervisor = AbsentHypervisor("it has not started yet")

    def notify_ready(self, status: str) -> bool:
        self.ready_after.append(self.clock.seconds - self.clock.begun)
        self.hypervisor = self.host.ports.hypervisor
        for name in self.autostart:
            record = self.hypervisor.find_domain(name)
            if record.state is VmState.STOPPED and all(v.present for v in self.vgpus(name)):
                self.hypervisor.start(record.uuid)
        return self.waits

    def vgpus(self, name: str):
        snapshot = observe(self.host.ports, ReadScope(models=False))
        return [v for v in snapshot.vgpus if v.vm == name]

    def listdir(self, path: str) -> list[str]:
        return [f"{name}.xml" for name in self.autostart] if path == AUTOSTART else self.host.ports.sysfs.listdir(path)

    def state(self, name: str) -> VmState:
        return self.host.ports.hypervisor.find_domain(name).state

    def restore(self, spec: HostSpec) -> Outcome:
        outer, ports = self, self.host.ports

        class Hypervisor:
            def __getattr__(self, name: str) -> object:
                return getattr(outer.hypervisor, name)

        seen = replace(with_calls(ports, "sysfs", listdir=self.listdir), hypervisor=Hypervisor(), system=self)
        timer = partial(ClockTimer, self.clock)
        return restore_host(seen, context(wait_seconds=5.0), spec, make_timer=timer)


def booted(tmp_path, *, ready_after: float, autostart: tuple[str, ...] = ("early", "late"), waits: bool = True) -> Boot:
    """Two VMs on one GPU; the driver takes the second one's VF only after a while."""
    clock = Scheduled(ready_after)
    host = open_sim_host(tmp_path, clock=clock)
    for name in ("early", "late"):
        create(host.ports, request("A100-4C", name=name), start=False)
    host.sim.reboot()
    host.ports.sysfs.write_uninterruptible(f"{DRIVER}/unbind", f"{LATE_VF}\n", gpu=GPU, deadline_seconds=5)
    clock.act = lambda: host.ports.sysfs.write(f"{DRIVER}/bind", f"{LATE_VF}\n")
    return Boot(host, clock, autostart, waits=waits)


def test_where_all_gpus_are_ready_libvirt_is_not_held(tmp_path):
    boot = booted(tmp_path, ready_after=10_000)
    boot.clock.act()
    done = boot.restore(BRIEF)
    assert boot.ready_after == [0]
    assert (len(done.data.restored), done.data.started) == (2, ())
    assert (boot.state("early"), boot.state("late")) == (VmState.RUNNING, VmState.RUNNING)


@pytest.mark.parametrize(("hold", "released", "started"), [(3, 3, ("late",)), (0, 0, ("early", "late")), (600, 6, ())])
def test_a_gpu_that_comes_late_holds_libvirt_for_so_long_and_its_vm_is_started_when_it_is_ready(
    tmp_path, hold, released, started
):
    boot = booted(tmp_path, ready_after=6)
    done = boot.restore(HostSpec(1, boot=BootSpec(hold_libvirt_seconds=hold)))
    assert boot.ready_after == [released]
    assert [entry.name for entry in done.data.restored] == ["early", "late"]
    assert done.data.started == started
    assert (boot.state("early"), boot.state("late")) == (VmState.RUNNING, VmState.RUNNING)


@pytest.mark.parametrize("more", [{"autostart": ("early",)}, {"waits": False}], ids=["no autostart", "no unit waits"])
def test_a_vm_that_libvirt_does_not_start_is_not_started_here(tmp_path, more):
    boot = booted(tmp_path, ready_after=6, **more)
    assert boot.restore(BRIEF).data.started == ()
    assert boot.state("late") is VmState.STOPPED


def test_one_that_its_user_shut_down_again_is_left_off(tmp_path):
    boot = booted(tmp_path, ready_after=6)
    bind = boot.clock.act

    def act() -> None:
        bind()
        boot.host.ports.hypervisor.destroy(boot.host.ports.hypervisor.find_domain("early").uuid)

    boot.clock.act = act
    assert boot.restore(BRIEF).data.started == ("late",)
    assert boot.state("early") is VmState.STOPPED


def test_a_gpu_that_never_gets_ready_fails_at_the_deadline_and_the_others_were_not_held_up(tmp_path):
    boot = booted(tmp_path, ready_after=10_000)
    absent = {"0000:99:00.0": GpuSpec(mode="vgpu")}
    with pytest.raises(Failed) as raised:
        boot.restore(HostSpec(1, gpus=absent, boot=BootSpec(deadline_seconds=5, hold_libvirt_seconds=3)))
    assert boot.ready_after == [3]
    assert [entry.name for entry in raised.value.facts["failed"]] == ["0000:99:00.0", "late"]
    assert [entry.name for entry in raised.value.facts["restored"]] == ["early"]
    assert boot.state("early") is VmState.RUNNING


def test_a_vm_that_cannot_be_started_then_is_named(tmp_path):
    boot = booted(tmp_path, ready_after=6)
    bind = boot.clock.act

    def start(uuid: str) -> None:
        raise LibvirtFailed("no memory", libvirt_code=1, call="virDomainCreate")

    def act() -> None:
        bind()
        boot.hypervisor = with_calls(boot.host.ports, "hypervisor", start=start).hypervisor

    boot.clock.act = act
    with pytest.raises(Failed, match=r"vm late: .*no memory") as raised:
        boot.restore(BRIEF)
    assert [entry.name for entry in raised.value.facts["restored"]] == ["early", "late"]


def test_the_default_is_half_a_minute_and_a_libvirt_that_never_answers_is_named(tmp_path):
    boot = booted(tmp_path, ready_after=10_000)
    assert HostSpec(1).boot.hold_libvirt_seconds == 30
    boot.notify_ready = lambda status: True
    boot.clock.act()
    with pytest.raises(Failed, match="vm early: libvirt does not answer 120 seconds after"):
        boot.restore(HostSpec(1, boot=BootSpec(hold_libvirt_seconds=0)))


PLAIN = "<domain type='kvm'><name>plain</name><memory>1048576</memory><os><type>hvm</type></os></domain>"


@pytest.mark.parametrize("hold", [0, 3])
def test_a_vm_that_vgpuctl_did_not_make_is_libvirts_to_start(tmp_path, hold):
    boot = booted(tmp_path, ready_after=6, autostart=("early", "late", "plain"))
    boot.host.ports.hypervisor.define(PLAIN)
    done = boot.restore(HostSpec(1, boot=BootSpec(hold_libvirt_seconds=hold)))
    assert "plain" not in done.data.started
    assert boot.state("late") is VmState.RUNNING


def test_a_step_that_takes_long_does_not_hold_libvirt_longer(tmp_path):
    """The unit waits for virtual functions that never come up in one step, for a minute."""
    clock = Scheduled(10_000)
    text = """version: 1
gpus: [{model: A100, vfs: {total: 16, enabled: 0}}]
faults: [{on: sriov-manage, kind: lost}]
"""
    host = open_sim_host(tmp_path, text=text, clock=clock)
    boot = Boot(host, clock, ())
    with pytest.raises(Failed):
        boot.restore(HostSpec(1, gpus={GPU: GpuSpec(mode="vgpu")}, boot=BootSpec(5, 3)))
    assert boot.ready_after == [3]
    assert clock.seconds - clock.begun > 5
