# SPDX-License-Identifier: Apache-2.0
"""Injected faults: refused, lost and parked calls, each as often as the scenario says; the tables of refusals."""

from __future__ import annotations

import errno
import os

import pytest

from tests.unit.sim.hosts import (
    GPU,
    MDEV,
    PCI,
    PF,
    MakeHost,
    create,
    domain_xml,
    libvirt_refused,
    refused,
    remove,
    run_vm,
    set_type,
    uuid,
    vf,
)
from vgpuctl.errors import InvalidInput, NvmlFailed, Stuck
from vgpuctl.model.vm import VmState
from vgpuctl.sim import faults
from vgpuctl.sim.refusals import _LIBVIRT_CALLS, KernelRefusal, VirErrorNumber, raise_refusal


def test_a_write_is_refused_with_its_errno(make: MakeHost) -> None:
    host = make('gpus: [{model: A100}]\nfaults: [{on: sysfs-write, match: "*/current_vgpu_type", errno: EBUSY}]\n')
    refused(errno.EBUSY, lambda: set_type(host, 0, 468))
    refused(errno.EBUSY, lambda: remove(host, f"{vf(0)}/nvidia/current_vgpu_type", "0"))


def test_times_and_nth_are_counted_on_the_host_not_in_the_process(make: MakeHost) -> None:
    text = 'gpus: [{model: A100}]\nfaults:\n  - {on: sysfs-write, match: "*", errno: EBUSY, times: 2}\n'
    refused(errno.EBUSY, lambda: set_type(make(text), 0, 468))
    refused(errno.EBUSY, lambda: set_type(make(text), 0, 468))
    set_type(make(text), 0, 468)
    third = "networks: []\nfaults:\n  - {on: start, match: vm, nth: 3, code: 38, message: no luck}\n"
    host = make(third, "third")
    vm = run_vm(host, "vm", 1)
    host.hypervisor.destroy(vm)
    host.hypervisor.start(vm)
    host.hypervisor.destroy(vm)
    assert "no luck" in libvirt_refused(38, lambda: make(third, "third").hypervisor.start(vm))
    host.hypervisor.start(vm)


def test_a_lost_write_is_acknowledged_and_does_nothing(make: MakeHost) -> None:
    host = make(
        "gpus: [{model: A100}]\nstorage: {pools: [{name: default}]}\n"
        "faults:\n" + "".join(f"  - {{on: {call}, kind: lost, match: '*{match}'}}\n" for call, match in (
            ("sysfs-write", "current_vgpu_type"), ("define", "lost"), ("start", "off"), ("make-volume", ""),
            ("make-pool", ""), ("set-record", ""), ("undefine", ""),
        ))
    )  # fmt: skip
    set_type(host, 0, 468)
    assert host.sysfs.read(f"{vf(0)}/nvidia/current_vgpu_type") == "0\n"
    refused(errno.EINVAL, lambda: set_type(host, 0, "junk"))
    assert host.hypervisor.define(domain_xml("lost", 1)).name == "lost"
    assert host.hypervisor.find_domain("lost") is None
    run_vm(host, "off", 2)
    host.hypervisor.set_record(uuid(2), "<p xmlns='urn:vgpuctl:1'/>")
    host.hypervisor.undefine(uuid(2))
    (record,) = host.hypervisor.domains()
    assert record.state is VmState.STOPPED
    assert "vgpuctl" not in record.xml
    assert host.storage.create_volume("default", "v", 1).name == "v"
    assert host.storage.volume("default", "v") is None
    host.storage.create_pool("p", "/p")
    assert host.storage.pool("p") is None


def test_a_parked_write_stays_until_the_boot(make: MakeHost) -> None:
    host = make('gpus: [{model: T4}]\nfaults: [{on: sysfs-write, match: "*/remove", kind: park}]\n')
    create(host, GPU, "nvidia-232", 1)
    with pytest.raises(Stuck):
        remove(host, f"{MDEV}/{uuid(1)}/remove")
    with pytest.raises(AssertionError, match="hang"):
        host.sysfs.write(f"{MDEV}/{uuid(1)}/remove", "1")
    assert len(host.stuck_writes()) == 1
    assert host.sysfs.listdir(MDEV) == (uuid(1),)
    host.reboot()
    assert host.stuck_writes() == ()


def test_reads_can_fail_too(make: MakeHost) -> None:
    host = make(
        "gpus: [{model: A100}]\nfaults:\n"
        f'  - {{on: sysfs-read, match: "*/virtfn0/*", errno: EIO}}\n'
        f'  - {{on: sysfs-listdir, match: "{PF}", errno: EACCES}}\n'
        f'  - {{on: sysfs-readlink, match: "{PF}/driver"}}\n'
        "  - {on: domains, code: 38}\n"
        "  - {on: nvml, message: broken}\n"
    )
    refused(errno.EIO, lambda: host.sysfs.read(f"{vf(0)}/vendor"))
    assert host.sysfs.read(f"{vf(1)}/vendor") == "0x10de\n"
    refused(errno.EACCES, lambda: host.sysfs.listdir(PF))
    refused(errno.EIO, lambda: host.sysfs.readlink(f"{PF}/driver"))
    assert host.sysfs.listdir(PCI)
    libvirt_refused(38, host.hypervisor.domains)
    assert (host.nvml.status().reason, host.nvml.gpu(GPU)) == ("broken", None)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("{on: defin}", "did you mean 'define'"),
        ("{on: define, errno: EIO}", "only sysfs calls have an errno"),
        ("{on: sysfs-write, errno: EFOO}", "not an errno"),
        ("{on: start, kind: park}", "only a sysfs-write can be parked"),
        ("{on: start, kind: pending}", "only an nvml-set-mig can be pending"),
        ("{on: start, kind: unknown}", "only the outcome of a migrate can be unknown"),
        ("{on: start, times: 1, nth: 2}", "cannot be combined"),
        ("{match: x}", "'on' is missing"),
        ("{on: start, kind: gone}", "known: error, lost, park, pending, unknown"),
    ],
)
def test_wrong_faults_fail(make: MakeHost, fault: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        make(f"faults: [{fault}]\n")


@pytest.mark.parametrize("kind", ["error", "lost"])
def test_each_call_that_partitions_a_gpu_can_fail_or_do_nothing(make: MakeHost, kind: str) -> None:
    calls = ("nvml-set-mig", "nvml-make-instance", "nvml-destroy-instance", "nvml-set-mixed-size")
    faults = "".join(f"  - {{on: {call}, kind: {kind}, code: 999, message: no luck}}\n" for call in calls)
    host = make(f"gpus: [{{model: A100, mig: [1g.5gb]}}, {{model: A100}}]\nfaults:\n{faults}")
    other = "0000:3f:00.0"
    before = (host.nvml.gpu(GPU), host.nvml.gpu(other))
    host.vendor.sriov_manage("-d", other, deadline_seconds=1)
    off = host.nvml.gpu(other)
    acts = [
        lambda: host.nvml.set_mig(other, enabled=True),
        lambda: host.nvml.create_gpu_instance(GPU, 19, 1),
        lambda: host.nvml.destroy_gpu_instance(GPU, 7),
        lambda: host.nvml.set_mixed_size(other, enabled=True),
    ]
    for number, act in enumerate(acts):
        if number == 3:
            host.vendor.sriov_manage("-e", other, deadline_seconds=1)
        if kind == "lost":
            act()
            continue
        with pytest.raises(NvmlFailed, match="no luck") as caught:
            act()
        assert caught.value.facts["nvml_code"] == 999
    assert off == before[1]
    assert (host.nvml.gpu(GPU), host.nvml.gpu(other)) == before


def test_no_situation_hides_behind_another() -> None:
    assert len(KernelRefusal) == len(KernelRefusal.__members__), "two members of one value would be one"


@pytest.mark.parametrize("refusal", KernelRefusal)
def test_only_the_errno_gets_out(refusal: KernelRefusal) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011
        raise_refusal(refusal)
    assert (caught.value.errno, caught.value.strerror) == (refusal.errno_number, os.strerror(refusal.errno_number))


@pytest.mark.parametrize("code", VirErrorNumber)
def test_numbers_are_libvirts(code: VirErrorNumber) -> None:
    import libvirt

    assert getattr(libvirt, f"VIR_ERR_{code.name}") == code


def test_every_call_that_can_fail_has_words() -> None:
    others = ("sysfs", "nvml", "sriov-manage", "reset-gpu", "modprobe")
    assert {call for call in faults.CALLS if not call.startswith(others)} <= set(_LIBVIRT_CALLS)
