# SPDX-License-Identifier: Apache-2.0
"""Why a host cannot take a VM: each reason by itself, all of them at once, and what only may surprise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values import MACHINE, T4Q, a100, snapshot, t4, vm, vm_uuid
from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.gpu import Backend, Gpu
from vgpuctl.model.migration import MigrationMark, MigrationRole
from vgpuctl.model.port_values import HypervisorCapabilities, NetworkInfo, PoolInfo
from vgpuctl.model.results.migration import (
    MigratingDiskResult,
    MigratingVgpuResult,
    MigrationHostResult,
    MigrationOfferResult,
    MigrationReasonResult,
)
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerPolicy, SchedulerState
from vgpuctl.model.vm import Nic, RecordState, Vm, VmState
from vgpuctl.observe.migration_host import CLIENT_FILES
from vgpuctl.operations.plans.guest_devices import BridgeInfo, HostTopology, HugepagePool
from vgpuctl.operations.plans.migration_checks import TargetFacts, find_target_reasons
from vgpuctl.operations.plans.migration_vgpu_checks import find_fit_gpus, lacks_gpu
from vgpuctl.value import replace

UUID = vm_uuid(900)
OTHER_MACHINE = "fedcba9876543210fedcba9876543210"
GPU = "0000:3b:00.0"
GIB = 1 << 30
BASE, DISK, ISO = "/srv/base.qcow2", "/pool/vm.qcow2", "/iso/debian.iso"
CPU = "Intel(R) Xeon(R) Gold 6448Y"
XML = f"""<domain type='kvm'><name>vm</name><uuid>{UUID}</uuid><memory unit='MiB'>4096</memory><vcpu>2</vcpu>
%s<os%s><type arch='x86_64' machine='pc-q35-8.2'>hvm</type></os>%s<devices>
<disk type='file' device='disk'><source file='{DISK}'/><target dev='vda'/></disk>
<disk type='file' device='cdrom'><source file='{ISO}'/><target dev='sda'/></disk>
<interface type='network'><source network='lan'/><mac address='52:54:00:00:00:01'/></interface>
<interface type='bridge'><source bridge='br0'/></interface>
<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='0x3b' slot='0' function='4'/></source></hostdev>
%s</devices></domain>"""


def xml(devices: str = "", *, top: str = "", os: str = "", cpu: str = "") -> str:
    return XML % (top, os, cpu, devices)


def host(name: str, machine_id: str, **more: Any) -> MigrationHostResult:
    values: dict[str, Any] = {
        "kernel": "6.8.0-45-generic",
        "distribution": "ubuntu 24.04",
        "libvirt_version": "10.0.0",
        "qemu_version": "8.2.2",
        "driver": "580.159.01",
        "cpu": CPU,
        "tls_directory": "/etc/pki/qemu",
    }
    return MigrationHostResult(name, machine_id, "x86_64", **{**values, **more})


VGPU = MigratingVgpuResult(
    "0000:3b:00.4", "vendor-vf", "A100-4C", GPU, "NVIDIA A100-PCIE-40GB", 4096, has_ecc=True, metadata="e30="
)
VDA = MigratingDiskResult(
    "vda", "disk", DISK, "qcow2", 20 * GIB, False, False, True, pool="default", volume="vm.qcow2", base=BASE
)
SDA = MigratingDiskResult("sda", "cdrom", ISO, "raw", GIB, False, True, False)
OFFER = MigrationOfferResult("id", "vm", UUID, "running", 4096, 2, xml(), host("alpha", MACHINE), (VGPU,), (VDA, SDA))
POOL = PoolInfo("default", "dir", True, "/pool", 500 * GIB, 400 * GIB)
FACTS = TargetFacts(
    host=host("beta", OTHER_MACHINE),
    snapshot=replace(snapshot(a100()), machine_id=OTHER_MACHINE),
    capabilities=HypervisorCapabilities(True, True, "/usr/bin/qemu-system-x86_64", secure_boot=True, tpm=True),
    networks={"lan": NetworkInfo("lan", True)},
    interfaces=frozenset({"lo", "br0"}),
    topology=HostTopology(frozenset(range(8)), {0: frozenset(range(8))}, (HugepagePool(0, 2048, 4096, 4096),)),
    memory_mib=65536,
    free_memory_mib=32768,
    pools={"default": POOL},
    files={DISK: False, BASE: True, ISO: True},
    has_ecc={GPU: True},
)
Change = Callable[[MigrationOfferResult, TargetFacts], tuple[MigrationOfferResult, TargetFacts]]


def check(
    offer: MigrationOfferResult = OFFER, facts: TargetFacts = FACTS, **options: bool
) -> tuple[tuple[MigrationReasonResult, ...], tuple[MigrationReasonResult, ...]]:
    values = {"copies_disks": True, "offline": False, "needs_tls": True, **options}
    return find_target_reasons(offer, facts, **values)


def on_source(**changes: Any) -> Change:
    return lambda offer, facts: (replace(offer, host=replace(offer.host, **changes)), facts)


def on_target(**changes: Any) -> Change:
    return lambda offer, facts: (offer, replace(facts, host=replace(facts.host, **changes)))


def with_facts(**changes: Any) -> Change:
    return lambda offer, facts: (offer, replace(facts, **changes))


def with_capabilities(**changes: Any) -> Change:
    return lambda offer, facts: (offer, replace(facts, capabilities=replace(facts.capabilities, **changes)))


def with_xml(text: str, then: Change | None = None) -> Change:
    def change(offer: MigrationOfferResult, facts: TargetFacts) -> tuple[MigrationOfferResult, TargetFacts]:
        offer = replace(offer, definition=text)
        return (offer, facts) if then is None else then(offer, facts)

    return change


def with_offer(**changes: Any) -> Change:
    return lambda offer, facts: (replace(offer, **changes), facts)


def with_gpus(*gpus: Gpu, **more: Any) -> Change:
    return with_facts(snapshot=replace(snapshot(*gpus), machine_id=OTHER_MACHINE), **more)


def with_vms(*vms: Any) -> Change:
    return with_facts(snapshot=replace(snapshot(a100(), vms=list(vms)), machine_id=OTHER_MACHINE))


def both(*changes: Change) -> Change:
    def change(offer: MigrationOfferResult, facts: TargetFacts) -> tuple[MigrationOfferResult, TargetFacts]:
        for one in changes:
            offer, facts = one(offer, facts)
        return offer, facts

    return change


def without(files: dict[str, bool]) -> Change:
    return with_facts(files={**FACTS.files, **files})


LEFT = vm(900, record=RecordState.MOVING, name="vm")
LEFT_RECORD = replace(LEFT.record, migration=MigrationMark("i", MigrationRole.ARRIVING, "alpha", MACHINE))
MDEV = replace(VGPU, backend="mdev-pf", profile="T4-4Q", gpu_model="Tesla T4", metadata=None)
PINNED = "<cputune><vcpupin vcpu='0' cpuset='6-9'/></cputune>"
BOUND = "<numatune><memory mode='strict' nodeset='1'/></numatune>"
HUGE = "<memoryBacking><hugepages><page size='2048' unit='KiB'/></hugepages></memoryBacking>"

REASONS: dict[str, tuple[Change, str, str]] = {
    "one host": (on_target(machine_id=MACHINE), "beta", "both hosts have the machine id"),
    "the same vm": (with_vms(vm(900, name="old")), "beta", "a VM of this uuid"),
    "left by a move": (
        with_vms(replace(LEFT, record=LEFT_RECORD)),
        "beta",
        "a move of it goes on or was interrupted",
    ),
    "the name": (with_vms(vm(7, name="vm")), "beta", "another VM with the name vm ("),
    "the mac": (with_vms(vm(7, nics=(Nic(mac="52:54:00:00:00:01"),))), "beta", "which vdi-007 on this host has, too"),
    "host.yaml": (
        with_facts(snapshot=replace(FACTS.snapshot, host_file_problem="host.yaml is invalid")),
        "beta",
        "host.yaml is invalid",
    ),
    "older qemu": (on_source(qemu_version="9.0.0"), "beta", "QEMU 8.2.2 is older than QEMU 9.0.0 of alpha"),
    "old libvirt here": (on_source(libvirt_version="9.0.0"), "alpha", "libvirt 9.0.0 is too old"),
    "old libvirt there": (on_target(libvirt_version="9.0.0"), "beta", "libvirt 9.0.0 is too old"),
    "old kernel": (on_target(kernel="5.15.0-122"), "beta", "the kernel 5.15.0-122 is too old"),
    "kinds": (
        both(with_gpus(t4(types=(replace(T4Q, profile="A100-4C"),))), with_facts(has_ecc={})),
        "both",
        "to move a VF vGPU to an mdev vGPU while its VM runs: 11.0.0 is needed",
    ),
    "arch": (with_capabilities(arch="aarch64"), "beta", "this host's CPUs are aarch64, and the VM's x86_64"),
    "kvm": (with_capabilities(kvm=False), "beta", "KVM is missing"),
    "machine": (
        with_xml(xml().replace("pc-q35-8.2", "pc-q35-9.1")),
        "beta",
        "QEMU 8.2.2 does not have the VM's machine type pc-q35-9.1",
    ),
    "ubuntu's machine": (
        with_xml(xml().replace("pc-q35-8.2", "pc-q35-noble"), on_target(distribution="debian 13")),
        "beta",
        "exists only in the QEMU of ubuntu 24.04 and related distributions",
    ),
    "uefi": (
        with_xml(xml(os=" firmware='efi'"), with_capabilities(uefi=False)),
        "beta",
        "finds no UEFI firmware, which",
    ),
    "secure boot": (
        with_xml(
            xml(os=" firmware='efi'").replace(
                "</os>", "<firmware><feature name='secure-boot' enabled='yes'/></firmware></os>"
            ),
            with_capabilities(secure_boot=False),
        ),
        "beta",
        "finds no UEFI firmware with secure boot",
    ),
    "tpm": (
        with_xml(xml("<tpm><backend type='emulator'/></tpm>"), with_capabilities(tpm=False)),
        "beta",
        "finds no TPM emulator",
    ),
    "no network": (with_facts(networks={"lan": None}), "beta", "libvirt has no network 'lan'"),
    "network is off": (
        with_facts(networks={"lan": NetworkInfo("lan", False)}),
        "beta",
        "'lan', which the VM is on, is not active",
    ),
    "bridge": (with_facts(interfaces=frozenset({"lo"})), "beta", "no interface or bridge 'br0'"),
    "vlan": (
        with_xml(
            xml().replace("<source bridge='br0'/>", "<source bridge='br0'/><vlan><tag id='30'/></vlan>"),
            with_facts(bridges={"br0": BridgeInfo("br0", True)}),
        ),
        "beta",
        "VLAN",
    ),
    "memory": (with_facts(memory_mib=2048, free_memory_mib=1024), "beta", "the host has 2 GiB in all"),
    "free memory": (with_facts(free_memory_mib=3000), "beta", "3000 MiB of memory are free"),
    "hugepages": (
        with_xml(xml(top=HUGE), with_facts(topology=replace(FACTS.topology, hugepages=(HugepagePool(0, 2048, 9, 9),)))),
        "beta",
        "the VM needs 2048 huge pages of 2MiB, and 9 are free",
    ),
    "cpus": (with_xml(xml(top=PINNED)), "beta", "pinned to CPUs 6-9, and 8-9 are missing"),
    "numa": (with_xml(xml(top=BOUND)), "beta", "bound to NUMA node 1, and 1 is missing (nodes: 0)"),
    "cpu maker": (on_target(cpu="AMD EPYC 9354"), "beta", "crashes when its CPU changes from Intel to AMD"),
    "no pool": (with_facts(pools={"default": None}), "beta", "no storage pool 'default'"),
    "pool is off": (with_facts(pools={"default": replace(POOL, active=False)}), "beta", "'default' is not active"),
    "pool kind": (
        with_facts(pools={"default": replace(POOL, kind="logical", path="/dev/vg")}),
        "beta",
        "is of kind logical",
    ),
    "pool is full": (
        with_facts(pools={"default": replace(POOL, available_bytes=1 << 20)}),
        "beta",
        "is full: 1 MiB are free, and vda has up to 20 GiB",
    ),
    "another path": (
        with_facts(pools={"default": replace(POOL, path="/other")}),
        "beta",
        "the storage pool 'default' of this host is at /other, and the copy of disk vda must be at /pool/vm.qcow2",
    ),
    "file": (without({DISK: True}), "beta", "/pool/vm.qcow2 exists already"),
    "base": (without({BASE: False}), "beta", "a linked clone of /srv/base.qcow2, which is missing"),
    "iso": (without({ISO: False}), "beta", "/iso/debian.iso of the VM's cdrom sda is missing"),
    "no pool at all": (with_offer(disks=(replace(VDA, pool=None), SDA)), "alpha", "is in no storage pool"),
    "shared disk": (with_offer(disks=(replace(VDA, is_shared=True), SDA)), "beta", "the VM's disk vda is shared"),
    "base of a shared disk": (
        both(with_offer(disks=(replace(VDA, is_shared=True), SDA)), without({DISK: True, BASE: False})),
        "beta",
        "a linked clone of /srv/base.qcow2, which is missing",
    ),
    "render node": (
        with_xml(
            xml(
                "<graphics type='egl-headless'><gl rendernode='/dev/dri/renderD129'/></graphics>"
                "<video><model type='virtio'><acceleration accel3d='yes'/></model></video>"
            ),
            without({"/dev/dri/renderD129": False}),
        ),
        "beta",
        "QEMU draws for the VM on /dev/dri/renderD129, which this host does not have",
    ),
    "kernel file": (
        with_xml(xml().replace("</os>", "<kernel>/boot/k</kernel></os>"), without({"/boot/k": False})),
        "beta",
        "/boot/k is missing",
    ),
    "profile": (
        with_gpus(t4(), t4("0000:5e:00.0")),
        "beta",
        "no GPU offers A100-4C: the host has 2 × Tesla T4",
    ),
    "driver without the profile": (
        with_gpus(a100(types=())),
        "beta",
        "no GPU offers A100-4C: the host has 1 × NVIDIA A100-PCIE-40GB; 0000:3b:00.0: its driver does not offer this",
    ),
    "vfs off": (
        with_gpus(a100(types=(), backend=None, vfs_total=16)),
        "beta",
        f"the VFs of {GPU} (NVIDIA A100-PCIE-40GB) are off: 0 of 16 enabled, and it may offer A100-4C once they are on",
    ),
    "ecc": (
        with_facts(has_ecc={GPU: False}),
        "beta",
        f"A100-4C cannot go to {GPU}: its ECC is off, and that of the GPU on alpha is on",
    ),
    "pair": (
        with_facts(pair_limits={(VGPU.carrier, GPU): ("gpu",)}),
        "beta",
        f"A100-4C cannot go to {GPU}: NVML says that this GPU is not of the same kind as the one on alpha",
    ),
    "driver": (on_target(driver="580.126.08"), "beta", "580.159.01 on alpha and 580.126.08 on beta"),
    "tls here": (
        on_source(missing_certificates=CLIENT_FILES),
        "alpha",
        "cannot be encrypted: ca-cert.pem, client-cert.pem, client-key.pem are missing in /etc/pki/qemu",
    ),
    "tls there": (
        on_target(missing_certificates=("server-key.pem",), tls_directory="/etc/pki/libvirt-migrate"),
        "beta",
        "cannot be encrypted: server-key.pem is missing in /etc/pki/libvirt-migrate",
    ),
}


def test_a_host_that_lacks_nothing_takes_it_without_a_word() -> None:
    assert check() == ((), ())


@pytest.mark.parametrize("name", REASONS)
def test_each_reason_is_named_once_with_its_host_and_what_helps(name: str) -> None:
    change, where, text = REASONS[name]
    reasons, _ = check(*change(OFFER, FACTS))
    assert [reason.what for reason in reasons if text not in reason.what] == []
    assert [reason.host for reason in reasons] == (["alpha", "beta"] if where == "both" else [where])
    assert all(reason.hint for reason in reasons) or name == "host.yaml"


HINTS = {
    "no network": "on alpha: virsh net-dumpxml lan > lan.xml; scp lan.xml root@beta:lan.xml; "
    "on beta: virsh net-define lan.xml; virsh net-start lan; virsh net-autostart lan",
    "bridge": "create it on beta (ip link shows what it has); or on alpha: virsh edit vm: give its card another "
    "network; then stop and start it",
    "the name": "choose another host; or, if its owner agrees, on beta: vgpuctl stop-vm vm, then virsh domrename vm "
    "NEW-NAME",
    "the mac": "on alpha: virsh edit vm: give the card another MAC address; then stop and start it",
    "memory": "on alpha: vgpuctl set-vm vm --memory SIZE --drain; it restarts the VM",
    "cpus": "on alpha: vgpuctl set-vm vm --cpu-pin none --drain; it restarts the VM",
    "numa": "on alpha: vgpuctl set-vm vm --cpu-pin none --drain; it restarts the VM",
    "iso": "copy it to beta, or take it out on alpha: virsh change-media vm sda --eject --live --config",
    "no pool": "on beta: virsh pool-define-as default dir --target /pool; virsh pool-build default; virsh pool-start "
    "default; virsh pool-autostart default",
    "another path": "on beta: if no VM uses /other: virsh pool-edit default: set its path to /pool; then virsh "
    "pool-destroy default (it only stops it); virsh pool-build default; virsh pool-start default",
    "profile": "choose a host with this GPU: NVIDIA A100-PCIE-40GB",
    "driver without the profile": "choose another host; or on beta: install the vGPU driver that alpha has (vgpuctl "
    "list-profiles shows what this one offers)",
    "vfs off": f"on beta: vgpuctl set-mode {GPU} vgpu",
}


@pytest.mark.parametrize("name", HINTS)
def test_a_hint_names_its_host_and_has_what_to_type_there(name: str) -> None:
    (reason,) = check(*REASONS[name][0](OFFER, FACTS))[0]
    assert reason.hint == HINTS[name]


def test_another_vm_of_the_name_that_is_off_can_be_renamed_at_once() -> None:
    (reason,) = check(*with_vms(vm(7, name="vm", state=VmState.STOPPED))(OFFER, FACTS))[0]
    assert reason.hint == "choose another host; or, if its owner agrees, on beta: virsh domrename vm NEW-NAME"


def test_a_disc_of_a_vm_that_is_off_is_taken_out_of_its_definition() -> None:
    change = both(with_offer(state="stopped"), without({ISO: False}))
    (reason,) = check(*change(OFFER, FACTS), offline=True)[0]
    assert str(reason.hint).endswith("virsh change-media vm sda --eject --config")


def test_a_qemu_that_is_too_old_for_several_reasons_is_named_once() -> None:
    old = on_target(qemu_version="6.2.0")
    (reason,) = check(*old(OFFER, FACTS))[0]
    assert (
        reason.what
        == "QEMU 6.2.0 is older than QEMU 8.2.2 of alpha, and does not have the VM's machine type pc-q35-8.2"
    )
    assert reason.hint == "on beta: upgrade QEMU to 8.2.2 or newer; --offline does not help"
    (reason,) = check(*old(OFFER, FACTS), offline=True)[0]
    assert reason.what == "QEMU 6.2.0 does not have the VM's machine type pc-q35-8.2"
    assert reason.hint == "on beta: upgrade QEMU to 8.2 or newer"


def test_the_qemu_to_upgrade_to_is_enough_for_the_vgpu() -> None:
    change = both(
        on_source(qemu_version="8.1.0"),
        on_target(qemu_version="8.0.0"),
        with_xml(xml().replace("pc-q35-8.2", "pc-q35-7.0")),
    )
    here, there = sorted(check(*change(OFFER, FACTS))[0], key=lambda reason: reason.host)
    assert here.what == "QEMU 8.1.0 is too old to move A100-4C while its VM runs: 8.2.2 is needed"
    assert there.what.startswith("QEMU 8.0.0 is older than QEMU 8.1.0 of alpha: a VM moves alive only to")
    assert there.hint == "on beta: upgrade QEMU to 8.2.2 or newer; or add --offline"


@pytest.mark.parametrize("copies_disks", [True, False])
def test_a_logical_volume_cannot_be_copied(copies_disks: bool) -> None:
    path = "/dev/vg0/vm"
    block = xml().replace(
        "<disk type='file' device='disk'><source file=", "<disk type='block' device='disk'><source dev="
    )
    disk = replace(VDA, path=path, volume="vm", pool="vg0", base=None)
    change = with_xml(block.replace(DISK, path), both(with_offer(disks=(disk, SDA)), with_facts(pools={"vg0": None})))
    (reason,) = check(*change(OFFER, FACTS), copies_disks=copies_disks)[0]
    assert (reason.host, reason.what, reason.hint) == (
        "alpha",
        "disk vda (/dev/vg0/vm) is a logical volume or another block device, and --copy-storage copies only files",
        "stop the VM, and move its disks to storage that both hosts mount at the same path",
    )


INDEPENDENT = (
    "the name", "older qemu", "bridge", "no network", "cpu maker", "base", "iso", "tls here", "tls there", "driver",
    "free memory", "kvm", "old kernel", "pair",
)  # fmt: skip


@given(st.sets(st.sampled_from(INDEPENDENT)))
def test_all_reasons_are_named_at_once(names: set[str]) -> None:
    offer, facts = OFFER, FACTS
    files: dict[str, bool] = dict(FACTS.files)
    for name in names:
        offer, changed = REASONS[name][0](offer, facts)
        files |= {path: False for path, exists in changed.files.items() if not exists}
        facts = replace(changed, files=files)
    reasons, _ = check(offer, facts)
    assert len(reasons) == len(names)
    assert all(any(REASONS[name][2] in reason.what for reason in reasons) for name in names)


def test_a_guest_whose_cpu_qemu_emulates_does_not_care_for_the_hosts() -> None:
    emulated = with_xml(xml(cpu="<cpu mode='maximum'/>").replace("'kvm'", "'qemu'"), on_target(cpu="AMD EPYC 9354"))
    assert check(*emulated(OFFER, FACTS)) == ((), ())


def test_files_of_the_source_alone_need_the_option() -> None:
    reasons, _ = check(copies_disks=False)
    assert [(r.host, r.what) for r in reasons] == [("alpha", "disk vda (/pool/vm.qcow2) is only on alpha")]
    assert "--copy-storage" in str(reasons[0].hint)


OFFLINE = ("older qemu", "old libvirt here", "old kernel", "cpu maker", "ecc", "pair", "driver", "free memory", "kinds")


@pytest.mark.parametrize("name", OFFLINE)
def test_what_concerns_a_running_vm_alone_is_no_reason_when_it_is_off(name: str) -> None:
    assert check(*REASONS[name][0](OFFER, FACTS), offline=True)[0] == ()


@pytest.mark.parametrize("name", ["tls here", "tls there"])
def test_certificates_are_not_needed_on_a_network_that_is_trusted(name: str) -> None:
    assert check(*REASONS[name][0](OFFER, FACTS), needs_tls=False) == ((), ())


def scheduler(policy: SchedulerPolicy) -> GpuScheduler:
    return GpuScheduler(state=SchedulerState(policy))


WARNINGS: dict[str, tuple[Change, str]] = {
    "cpu model": (
        with_xml(xml(cpu="<cpu mode='host-passthrough'/>"), on_target(cpu="Intel(R) Xeon(R) Gold 6338")),
        "If it lacks a feature, the move fails or the guest crashes",
    ),
    "cpu unknown": (
        with_xml(xml(cpu="<cpu mode='host-model'/>"), on_target(cpu=None)),
        "CPU model of beta is not known",
    ),
    "machine unknown": (
        both(
            with_xml(xml().replace("pc-q35-8.2", "pc-q35-noble"), on_target(distribution=None)),
            with_offer(vgpus=()),
        ),
        "whether its QEMU has the VM's machine type pc-q35-noble is not known",
    ),
    "qemu is a little older": (on_source(qemu_version="8.2.9"), "QEMU 8.2.2 is a little older than QEMU 8.2.9"),
    "tls unknown": (on_source(tls_directory=None), "certificates to encrypt the move is not known"),
    "no client's certificate": (
        on_source(missing_certificates=("client-key.pem",)),
        "client-key.pem is missing in /etc/pki/qemu: beta asks for a client's certificate",
    ),
    "distribution": (on_target(distribution="debian 13"), "the distribution of beta is debian 13"),
    "driver unknown": (on_target(driver=None), "NVIDIA's driver on beta is not known"),
    "scheduler": (
        both(
            with_offer(vgpus=(replace(VGPU, scheduler="equal_share"),)),
            with_gpus(a100(scheduler=scheduler(SchedulerPolicy.BEST_EFFORT))),
        ),
        "is best_effort here and equal_share on alpha",
    ),
    "model": (
        with_offer(vgpus=(replace(VGPU, gpu_model="NVIDIA A100 80GB PCIe", metadata=None),)),
        "whether the driver takes that is not known",
    ),
    "free space": (
        with_facts(pools={"default": replace(POOL, available_bytes=10 * GIB)}),
        "can grow to 20 GiB, and the storage pool 'default' has 10 GiB free",
    ),
    "optional disc": (
        with_xml(xml().replace(f"file='{ISO}'", f"file='{ISO}' startupPolicy='optional'"), without({ISO: False})),
        "the VM arrives with an empty drive",
    ),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_what_only_may_surprise_is_a_warning(name: str) -> None:
    change, text = WARNINGS[name]
    reasons, warnings = check(*change(OFFER, FACTS))
    assert reasons == ()
    assert [w.what for w in warnings if text not in w.what] == []
    assert warnings


def test_open_vswitch_sets_vlans_itself() -> None:
    text = xml().replace("<source bridge='br0'/>", "<source bridge='br0'/><vlan><tag id='30'/></vlan>")
    assert check(*with_xml(text, with_facts(bridges={"br0": BridgeInfo("br0", False)}))(OFFER, FACTS)) == ((), ())


def test_a_gpu_that_fits_is_enough() -> None:
    other = "0000:5e:00.0"
    reasons, _ = check(*with_gpus(a100(), a100(other), has_ecc={GPU: True, other: False})(OFFER, FACTS))
    assert reasons == ()


def test_an_mdev_needs_older_software_than_a_vf() -> None:
    offer, facts = both(
        with_offer(vgpus=(replace(MDEV, has_ecc=None),)),
        with_gpus(t4()),
        on_source(libvirt_version="8.6.0", qemu_version="8.1.0", kernel="5.18.0"),
        on_target(libvirt_version="8.6.0", qemu_version="8.2.0", kernel="5.18.0"),
    )(OFFER, FACTS)
    assert check(offer, facts)[0] == ()
    (reason,) = check(*on_target(libvirt_version="8.5.0")(offer, facts))[0]
    assert "8.6.0 is needed" in reason.what


def test_a_whole_gpu_needs_one_of_its_model() -> None:
    whole = replace(VGPU, backend="passthrough", profile=None, gpu_model="Tesla T4", metadata=None)
    (reason,) = check(*with_offer(vgpus=(whole,))(OFFER, FACTS), offline=True)[0]
    assert reason.what == "the host has no Tesla T4 to pass through, but 1 × NVIDIA A100-PCIE-40GB"


def test_a_model_that_was_not_read_is_recognised_by_its_pci_id_alone() -> None:
    unread = a100(model="10de:20f1", device_id="20f1", backend=Backend.PASSTHROUGH, types=())
    whole = replace(VGPU, backend="passthrough", profile=None, metadata=None, pci_id="10de:20f1")
    assert check(*both(with_offer(vgpus=(whole,)), with_gpus(unread))(OFFER, FACTS), offline=True)[0] == ()
    unknown = both(with_offer(vgpus=(replace(whole, pci_id=None),)), with_gpus(unread))
    (reason,) = check(*unknown(OFFER, FACTS), offline=True)[0]
    assert reason.what == "the host has no NVIDIA A100-PCIE-40GB to pass through, but 1 × 10de:20f1"
    plain = both(with_offer(vgpus=(replace(whole, backend="sriov-vf", pci_id="10de:1eb8"),)), with_gpus(unread))
    (reason,) = check(*plain(OFFER, FACTS), offline=True)[0]
    assert reason.what == "the host has no NVIDIA A100-PCIE-40GB with virtual functions, but 1 × 10de:20f1"


def test_a_gpus_audio_function_is_no_gpu() -> None:
    audio = a100(model="10de:22ba", device_id="22ba", backend=Backend.PASSTHROUGH, types=(), is_display_class=False)
    whole = replace(VGPU, backend="passthrough", profile=None, metadata=None, pci_id="10de:22ba")
    change = both(with_offer(vgpus=(whole,)), with_gpus(audio))
    assert [r.what for r in check(*change(OFFER, FACTS), offline=True)[0]] == [
        "the host has no NVIDIA A100-PCIE-40GB to pass through"
    ]
    assert find_fit_gpus(*change(OFFER, FACTS), offline=True) == frozenset()


def test_the_gpus_that_fit_take_every_vgpu_that_they_offer() -> None:
    other = "0000:5e:00.0"
    offer, facts = with_gpus(a100(), a100(other), has_ecc={GPU: True, other: False})(OFFER, FACTS)
    assert find_fit_gpus(offer, facts, offline=False) == {GPU}
    assert find_fit_gpus(offer, facts, offline=True) == {GPU, other}
    assert not lacks_gpu(offer, facts, offline=False)
    assert lacks_gpu(offer, replace(facts, has_ecc={GPU: False, other: False}), offline=False)


def test_different_drivers_are_named_once_with_both_versions() -> None:
    change = both(on_target(driver="550.90.05"), with_facts(pair_limits={(VGPU.carrier, GPU): ("host-driver",)}))
    (reason,) = check(*change(OFFER, FACTS))[0]
    assert reason.what == (
        f"A100-4C cannot go to {GPU}: NVML says that the host drivers do not match (580.159.01 on alpha, "
        "550.90.05 on beta)"
    )
    assert reason.hint == "install the same driver on both hosts; or add --offline"


def test_gpus_that_refuse_for_one_reason_are_named_together() -> None:
    other = "0000:5e:00.0"
    limits = {(VGPU.carrier, gpu): () for gpu in (GPU, other)}
    (reason,) = check(*with_gpus(a100(), a100(other), pair_limits=limits, has_ecc={})(OFFER, FACTS))[0]
    assert reason.what.startswith(f"A100-4C cannot go to {GPU}, {other}: NVML says that it does not take this vGPU")


@pytest.mark.parametrize("kernel", ["5.14.0-427.el9.x86_64", None])
def test_the_kernel_of_rhel_9_has_what_newer_ones_have(kernel: str | None) -> None:
    assert check(*on_target(kernel=kernel)(OFFER, FACTS))[0] == ()


def test_one_note_of_nvidia_for_both_hosts_with_the_prefix_of_the_host_that_it_is_about() -> None:
    debian = {"distribution": "debian 13"}
    (note,) = check(*both(on_source(**debian), on_target(**debian))(OFFER, FACTS))[1]
    assert "the distribution of alpha and beta is debian 13" in note.what
    (note,) = check(*on_source(**debian)(OFFER, FACTS))[1]
    assert note.host == "alpha"


SAME = "a VM of this uuid"


@pytest.mark.parametrize(
    ("other", "shared", "words", "hint"),
    [
        (vm(900, name="old", state=VmState.RUNNING), False, "old, which is running", "on beta: virsh dominfo old; "),
        (
            vm(900, name="old", state=VmState.STOPPED),
            False,
            "old, which is off",
            "on beta: virsh domblklist old shows its disks, which delete-vm deletes; if it is an old copy",
        ),
        (vm(900, name="old", state=VmState.STOPPED), True, "old, which is off", "on beta: virsh undefine old, if"),
        (
            vm(900, name="old", state=VmState.STOPPED, record=None),
            False,
            "old, which is off",
            "on beta: virsh undefine old, if",
        ),
        (
            replace(LEFT, record=LEFT_RECORD),
            False,
            "a move of it goes on or was interrupted",
            "wait if a migrate-vm still moves it; else on beta: vgpuctl end-migration vm --with ssh://alpha",
        ),
    ],
)
def test_a_vm_of_the_same_uuid_is_never_removed_while_it_runs(other: Vm, shared: bool, words: str, hint: str) -> None:
    change = both(with_vms(other), without({DISK: True}), with_offer(disks=(replace(VDA, is_shared=shared), SDA)))
    (reason,) = check(*change(OFFER, FACTS))[0]
    assert reason.what.startswith(SAME)
    assert words in reason.what
    assert str(reason.hint).startswith(hint)


@pytest.mark.parametrize("name", REASONS)
def test_no_line_of_the_target_says_there(name: str) -> None:
    if name == "vlan":
        return  # the sentence of create-vm, whose "there" is the bridge
    for reason in check(*REASONS[name][0](OFFER, FACTS))[0]:
        assert " there" not in reason.what
        assert " there" not in str(reason.hint)


def test_a_model_that_was_not_read_is_no_reason_for_a_vgpu_with_a_profile() -> None:
    sliced = both(with_offer(vgpus=(replace(VGPU, metadata=None),)), with_gpus(a100(model="10de:20f1")))
    assert check(*sliced(OFFER, FACTS)) == ((), ())


def test_a_backend_of_another_version_is_compared_as_far_as_it_is_known() -> None:
    offer = replace(OFFER, vgpus=(replace(VGPU, backend="new-kind"),))
    assert check(offer)[0] == ()


def test_a_definition_that_is_no_xml_is_an_error() -> None:
    with pytest.raises(LibvirtFailed):
        check(replace(OFFER, definition="<domain"))
