# SPDX-License-Identifier: Apache-2.0
"""Waiting for a guest ends with an answer, at the deadline, or because the VM went off; the VM stays."""

from __future__ import annotations

import pytest

from tests.hosts import EagerClock, Silent, context, create, delete, open_sim_host, request, start, stop
from tests.meanwhile import with_calls
from vgpuctl.config.arguments import WAIT_EVENTS
from vgpuctl.errors import Busy, HostCannot, Interrupted, NotFound, PartlyApplied, Refused
from vgpuctl.model.port_values import GuestAddress
from vgpuctl.model.results.vms import GuestResult
from vgpuctl.model.usage import UsageSample, VgpuUse
from vgpuctl.model.vm import VmState
from vgpuctl.operations.wait import wait, wait_for_guest
from vgpuctl.value import replace


class ThenOff(EagerClock):
    """A clock on which a VM goes off during the wait."""

    def sleep(self, seconds):
        super().sleep(seconds)
        if self.monotonic() > 1_000_003:
            self.off()


def booting(tmp_path, after, answer):
    """Return a host with a VM whose guest agent begins to answer after some seconds, what made it, and the clock."""
    clock = EagerClock()
    ports = open_sim_host(tmp_path, clock=clock).ports
    made = create(ports, request("A100-4C", name="vm"))
    moment = clock.monotonic() + after

    def addresses(uuid, source):
        return answer if source == "agent" and clock.monotonic() >= moment else None

    return with_calls(ports, "hypervisor", guest_addresses=addresses), made, clock


def stopping(tmp_path, *names):
    """Return a host with VMs that run, and a clock on which something happens to them during the wait."""
    clock = ThenOff()
    ports = open_sim_host(tmp_path, clock=clock).ports
    return ports, clock, [create(ports, request("A100-4C", name=name)) for name in names]


@pytest.mark.parametrize("answer", [(), (GuestAddress("127.0.0.1", 8, None, "lo"),)])
def test_an_agent_that_answers_without_an_address_is_enough(tmp_path, answer):
    ports, made, clock = booting(tmp_path, 20, answer)
    begun = clock.monotonic()
    outcome = wait_for_guest(ports, context(), made, 60)
    assert outcome.data.guest == GuestResult("agent", ())
    assert outcome.steps[:-1] == made.steps
    assert 20 <= clock.monotonic() - begun < 22


def test_the_deadline_leaves_the_vm_running_and_says_so(tmp_path):
    ports, made, clock = booting(tmp_path, 1000, ())
    begun = clock.monotonic()
    with pytest.raises(
        Busy, match=r"vm was created and runs, but the guest of vm has not answered after 30 s"
    ) as caught:
        wait_for_guest(ports, context(), made, 30)
    assert caught.value.status == 75
    assert clock.monotonic() - begun == 30
    assert ports.hypervisor.find_domain("vm").state is VmState.RUNNING
    assert caught.value.changed


def test_a_vm_that_goes_off_is_not_waited_for(tmp_path):
    ports, clock, (made,) = stopping(tmp_path, "vm")
    clock.off = lambda: stop(ports, "vm")
    with pytest.raises(PartlyApplied, match="stopped before its guest answered") as caught:
        wait_for_guest(ports, context(), made, 300)
    assert caught.value.left == ["VM vm with its vGPUs and disks"]
    assert clock.monotonic() < 1_000_010


def test_a_signal_ends_the_waiting_and_leaves_the_vm_running(tmp_path):
    class Signalled(Silent):
        observations = 0

        def on_step_start(self, number, text):
            self.observations += 1
            if self.observations > 3:
                raise Interrupted("interrupted", signal_number=2)

    ports, made, _clock = booting(tmp_path, 1000, ())
    with pytest.raises(Interrupted) as caught:
        wait_for_guest(ports, context(progress=Signalled()), made, 300)
    assert caught.value.left == ["VM vm: it is created and runs"]
    assert ports.hypervisor.find_domain("vm").live_xml is not None


def test_a_dry_run_says_that_it_would_wait(tmp_path):
    ports = open_sim_host(tmp_path).ports
    planned = create(ports, request("A100-4C", name="vm"), dry_run=True)
    steps = wait_for_guest(ports, context(), planned, 60).steps
    assert steps == (*planned.steps, "wait until the guest of vm answers (at most 60 s)")


def waited(ports, *names, event, timeout=30.0):
    return wait(ports, context(), names, event, timeout).data


def test_states_of_several_vms_and_each_only_once(tmp_path):
    ports, _, _ = stopping(tmp_path, "a", "b")
    a, b = waited(ports, "a", "b", event="running")
    assert (a.name, a.state, a.guest, b.name) == ("a", "running", None, "b")
    stop(ports, "a")
    assert [vm.state for vm in waited(ports, "a", a.uuid, event="off")] == ["stopped"]


def test_all_vms_are_there_at_the_same_time(tmp_path):
    ports, clock, _ = stopping(tmp_path, "a", "b")
    stop(ports, "b")

    def exchange():
        stop(ports, "a")
        start(ports, "b")

    clock.off = exchange
    with pytest.raises(Busy, match="1 of 2 VMs") as caught:
        waited(ports, "a", "b", event="running", timeout=8.0)
    assert caught.value.facts["lines"] == ["a is still stopped"]


def test_the_end_of_the_time_shows_what_is_missing(tmp_path):
    clock = EagerClock()
    ports = open_sim_host(tmp_path, clock=clock).ports
    for name in ("a", "b c"):
        create(ports, request("A100-4C", name=name))
    begun = clock.monotonic()
    with pytest.raises(Busy, match=r"^b c is still running after 5 s$") as one:
        waited(ports, "b c", event="off", timeout=5.0)
    assert clock.monotonic() - begun == 5
    assert one.value.hint == "vgpuctl stop-vm 'b c'"
    stop(ports, "a")
    with pytest.raises(Busy, match="1 of 2 VMs has not reached 'off' after 0 s") as several:
        waited(ports, "a", "b c", event="off", timeout=0.0)
    assert several.value.facts["lines"] == ["b c is still running"]
    assert [vm["state"] for vm in several.value.facts["vms"]] == ["running"]
    with pytest.raises(Busy, match="a is still stopped") as off:
        waited(ports, "a", event="running", timeout=0.0)
    assert off.value.hint == "vgpuctl start-vm a"


@pytest.mark.parametrize("event", WAIT_EVENTS)
def test_a_vm_that_is_off_has_no_guest(tmp_path, event):
    ports = open_sim_host(tmp_path).ports
    create(ports, request("A100-4C", name="vm"), start=False)
    with pytest.raises(Refused, match="vm is stopped: ") as caught:
        waited(ports, "vm", event=event)
    assert caught.value.hint == "vgpuctl start-vm vm"


def test_an_agent_without_an_address_is_not_enough_for_an_address(tmp_path):
    ports, _made, _clock = booting(tmp_path, 10, ())
    assert waited(ports, "vm", event="guest")[0].guest == GuestResult("agent", ())
    with pytest.raises(Busy, match="the guest of vm has no known address after 30 s"):
        waited(ports, "vm", event="address")


@pytest.mark.parametrize("event", ["running", "off", "guest"])
def test_a_vm_that_is_deleted_ends_the_waiting_at_once(tmp_path, event):
    ports, clock, _ = stopping(tmp_path, "vm")
    if event == "running":
        stop(ports, "vm")
    clock.off = lambda: delete(ports, "vm")
    with pytest.raises(NotFound, match="VM vm no longer exists: it has just been deleted"):
        waited(ports, "vm", event=event, timeout=300)
    assert clock.monotonic() < 1_000_010


def test_a_vm_without_a_definition_is_gone_when_it_is_off(tmp_path):
    clock = ThenOff()
    host = open_sim_host(tmp_path, clock=clock)
    uuid = create(host.ports, request("A100-4C", name="vm")).data.uuid
    host.sim.hypervisor.make_transient(uuid)
    clock.off = lambda: host.sim.hypervisor.destroy(uuid)
    (vm,) = waited(host.ports, "vm", event="off", timeout=300)
    assert vm.state == "absent"


def test_the_waiting_can_be_cancelled(tmp_path):
    class Cancelled(Silent):
        def on_wait(self):
            raise Interrupted("interrupted", signal_number=2)

    ports = open_sim_host(tmp_path).ports
    create(ports, request("A100-4C", name="vm"))
    with pytest.raises(Interrupted) as caught:
        wait(ports, context(progress=Cancelled()), ["vm"], "off", 30)
    assert caught.value.left == []


class Nvml:
    """What NVML tells: from each second of the list on, these vGPUs."""

    def __init__(self, clock, *samples, failed_sources=None):
        self.clock, self.samples = clock, samples
        self.failed_sources = failed_sources or {}

    def read(self, targets, programs):
        passed = self.clock.now() - 1_000_000
        vgpus = next((vgpus for after, vgpus in reversed(self.samples) if passed >= after), ())
        return UsageSample(self.clock.now(), 0.0, vgpus=vgpus, failed_sources=self.failed_sources)


def use_of(vgpu, license_state, driver="550.90.07"):
    return VgpuUse(vgpu.gpu, (vgpu.carrier,), license_state=license_state, guest_driver=driver)


def with_vm(tmp_path, count=1):
    """Return a host with a running VM, its vGPUs, what made it, and the clock."""
    clock = EagerClock()
    ports = open_sim_host(tmp_path, clock=clock).ports
    made = create(ports, request("A100-4C", count, name="vm"))
    return ports, made.data.vgpus, made, clock


def test_a_driver_that_starts_later_and_then_its_license(tmp_path):
    ports, (vgpu,), made, clock = with_vm(tmp_path)
    samples = (10, (use_of(vgpu, "unlicensed"),)), (40, (use_of(vgpu, "licensed"),))
    watched = replace(ports, usage=Nvml(clock, (0, (use_of(vgpu, None, driver=None),)), *samples))
    (vm,) = waited(watched, "vm", event="driver")
    assert (vm.guest, vm.guest_software.driver, vm.guest_software.license) == (None, "550.90.07", "unlicensed")
    assert 10 <= clock.now() - 1_000_000 < 14
    with pytest.raises(Busy, match=r"^the guest of vm has no license: unlicensed after 5 s$"):
        waited(watched, "vm", event="license", timeout=5)
    outcome = wait_for_guest(watched, context(), made, 60, "license")
    assert outcome.steps[-1] == "wait until the guest of vm has its license (at most 60 s)"
    assert outcome.data.guest_software.license == "licensed"
    assert 40 <= clock.now() - 1_000_000 < 44


def test_a_vm_has_its_license_when_each_of_its_vgpus_has_one(tmp_path):
    ports, (one, two), _made, clock = with_vm(tmp_path, 2)
    part, whole = (
        (use_of(one, "licensed"), use_of(two, "unlicensed")),
        (use_of(one, "licensed"), use_of(two, "licensed")),
    )
    watched = replace(ports, usage=Nvml(clock, (0, part), (20, whole)))
    waited(watched, "vm", event="license")
    assert clock.now() - 1_000_000 >= 20


def test_a_vgpu_of_which_nvml_tells_nothing_has_no_license(tmp_path):
    """Its card may be lost, or the guest may not have found it yet."""
    ports, (one, two), _made, clock = with_vm(tmp_path, 2)
    both = (use_of(one, "licensed"), use_of(two, None, driver=None))
    watched = replace(ports, usage=Nvml(clock, (0, (use_of(one, "licensed"),)), (20, both)))
    waited(watched, "vm", event="driver")
    with pytest.raises(Busy, match="the guest of vm has no license for all its vGPUs after 9 s"):
        waited(watched, "vm", event="license", timeout=9)
    with pytest.raises(Busy, match="the guest of vm has no license: unknown after 60 s"):
        waited(watched, "vm", event="license", timeout=60)


def test_the_waiting_itself_opens_nvml_once(tmp_path):
    """The driver refuses to change the layout of a GPU while anybody has it open."""
    ports, _vgpus, _made, clock = with_vm(tmp_path)
    asked = []
    nvml = ports.nvml
    watched = with_calls(
        replace(ports, usage=Nvml(clock)),
        "nvml",
        gpu=lambda *given, **named: asked.append(1) or nvml.gpu(*given, **named),
    )
    with pytest.raises(Busy):
        waited(watched, "vm", event="driver", timeout=30)
    assert len(asked) == 1


def test_why_nvml_tells_nothing_is_in_the_error(tmp_path):
    ports, _vgpus, made, clock = with_vm(tmp_path)
    watched = replace(ports, usage=Nvml(clock, failed_sources={"nvml": "no answer within 5 s"}))
    text = "the guest of vm has not started NVIDIA's driver after 9 s: NVML: no answer within 5 s"
    with pytest.raises(Busy, match=f"^{text}$"):
        waited(watched, "vm", event="driver", timeout=9)
    with pytest.raises(Busy, match=f"^vm was created and runs, but {text}$"):
        wait_for_guest(watched, context(), made, 9, "driver")


@pytest.mark.parametrize("event", ["driver", "license"])
def test_the_driver_of_a_whole_gpu_cannot_be_seen(tmp_path, event):
    ports = open_sim_host(tmp_path, "mixed").ports
    made = create(ports, request(name="vm", mode="passthrough", gpu="0000:d8:00.0"))
    with pytest.raises(HostCannot, match=f"this host cannot see the {event} in vm") as caught:
        waited(ports, "vm", event=event)
    assert caught.value.hint.startswith("vgpuctl wait vm --for guest")
    with pytest.raises(PartlyApplied, match="vm was created and runs, but this host cannot see") as late:
        wait_for_guest(ports, context(), made, 60, event)
    assert late.value.left == ["VM vm with its vGPUs and disks"]


def test_without_a_reader_nothing_is_waited_for(tmp_path):
    ports, _vgpus, _made, _clock = with_vm(tmp_path)
    with pytest.raises(HostCannot, match="its NVML reports on no vGPU of it"):
        waited(replace(ports, usage=None), "vm", event="driver")
