# SPDX-License-Identifier: Apache-2.0
"""Whether a host can take a VM that another one offers: every reason why not, each with what helps against it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from vgpuctl.errors import VgpuctlError
from vgpuctl.model import hint_commands
from vgpuctl.model.numbers import format_mib, format_ranges, parse_version
from vgpuctl.model.results.migration import MigrationHostResult, MigrationOfferResult, MigrationReasonResult
from vgpuctl.model.vm import Nic, RecordState, Vm, VmState
from vgpuctl.observe.migration_host import AUTHORITY, CERTIFICATES, MIGRATION_CERTIFICATES, QEMU_CONF
from vgpuctl.operations.plans.guest_devices import LINUX_BRIDGE_VLAN_SINCE, GuestHost, check_hugepages, check_nics
from vgpuctl.operations.plans.migration_disk_checks import disk_reasons, disk_warnings
from vgpuctl.operations.plans.migration_target import Pair, pair_of
from vgpuctl.operations.plans.migration_target import TargetFacts as TargetFacts
from vgpuctl.operations.plans.migration_vgpu_checks import least_qemu, vgpu_reasons, vgpu_warnings
from vgpuctl.value import replace

Reasons = Iterator[MigrationReasonResult]
_RHEL_KIN = frozenset({"rhel", "centos", "almalinux", "rocky", "ol"})
"""Distributions with Red Hat's machine types, by their ids of os-release."""
_CPU_MAKERS = ("Intel", "AMD")


def find_target_reasons(
    offer: MigrationOfferResult, facts: TargetFacts, *, copies_disks: bool, offline: bool, needs_tls: bool
) -> tuple[tuple[MigrationReasonResult, ...], tuple[MigrationReasonResult, ...]]:
    """Return why the target cannot take the VM, and what may surprise; the source's own reasons are in the offer.

    `copies_disks`: files of the source alone are sent, too. `needs_tls`: memory and disks must be encrypted.

    Raises:
        LibvirtFailed: the definition that the source sent cannot be read.
    """
    pair = pair_of(offer, facts, copies_disks=copies_disks, offline=offline, needs_tls=needs_tls)
    reasons = [*_identity_reasons(pair), *_qemu_reasons(pair), *_machine_reasons(pair), *_network_reasons(pair)]
    reasons += [*_memory_reasons(pair), *_cpu_reasons(pair), *disk_reasons(pair), *vgpu_reasons(pair)]
    reasons += _tls_reasons(pair)
    warnings = [
        *_version_warnings(pair),
        *_machine_warnings(pair),
        *_cpu_warnings(pair),
        *disk_warnings(pair),
        *vgpu_warnings(pair),
    ]
    warnings += [*_memory_warnings(pair), *_tls_warnings(pair)]
    return tuple(dict.fromkeys(reasons)), tuple(dict.fromkeys(warnings))


def _identity_reasons(pair: Pair) -> Reasons:
    offer, facts = pair.offer, pair.facts
    name = shlex.quote(offer.name)
    if offer.host.machine_id == facts.host.machine_id:
        yield pair.there(
            f"both hosts have the machine id {facts.host.machine_id}: they are one host, or copies of one image",
            f"give --to another host; or, if {facts.host.name} is a copied image and has no VMs yet, on that host: rm "
            "-f /etc/machine-id /var/lib/dbus/machine-id; systemd-machine-id-setup; reboot",
        )
        return
    if facts.snapshot.host_file_problem is not None:
        hint = facts.snapshot.host_file_hint
        yield pair.there(facts.snapshot.host_file_problem, None if hint is None else pair.on_target(hint))
    for other in facts.snapshot.vms:
        if other.uuid == offer.uuid:
            yield _same_vm_reason(pair, other)
        elif other.name == offer.name:
            yield pair.there(
                f"this host has another VM with the name {offer.name} ({other.uuid})",
                f"choose another host; or, if its owner agrees, {pair.on_target(_rename_hint(other))}",
            )
    macs = {mac: other.name for other in facts.snapshot.vms if other.uuid != offer.uuid for mac in other.mac_addresses}
    for mac in pair.vm.mac_addresses:
        if mac in macs:
            yield pair.there(
                f"the VM's network card has the MAC address {mac}, which {macs[mac]} on this host has, too",
                pair.on_source(f"virsh edit {name}: give the card another MAC address; then stop and start it"),
            )


def _rename_hint(other: Vm) -> str:
    rename = f"virsh domrename {shlex.quote(other.name)} NEW-NAME"
    return rename if other.state is VmState.STOPPED else f"{hint_commands.off_command(other)}, then {rename}"


def _same_vm_reason(pair: Pair, other: Vm) -> MigrationReasonResult:
    """Return what to do about a VM of the same uuid on the target: never remove one that runs, or disks in use."""
    quoted, record = shlex.quote(other.name), other.record or other.copied_record
    what = f"a VM of this uuid ({pair.offer.uuid}) exists already: {other.name}"
    if record is not None and record.state is RecordState.MOVING:
        mark = record.migration
        command = "vgpuctl reconcile-host"
        if mark is not None:
            command = hint_commands.end_migration_command(other.name, mark.peer)
        return pair.there(
            f"{what}, and a move of it goes on or was interrupted",
            f"wait if a migrate-vm still moves it; else {pair.on_target(command)}",
        )
    if other.state is not VmState.STOPPED:
        hint = f"virsh dominfo {quoted}; one VM must not run on two hosts: find out which of the two is to stay"
        return pair.there(f"{what}, which is {other.state}", pair.on_target(hint))
    is_managed = other.record is not None and other.record.created_vm
    has_shared = any(disk.made and disk.is_shared for disk in pair.offer.disks)
    hint = (
        f"virsh domblklist {quoted} shows its disks, which delete-vm deletes; if it is an old copy, and {pair.source} "
        f"does not use them: vgpuctl delete-vm {quoted}"
    )
    if has_shared or not is_managed:  # delete-vm would delete the disks of the VM that moves
        hint = f"virsh undefine {quoted}, if it is an old copy"
    return pair.there(f"{what}, which is off", pair.on_target(hint))


def _qemu_reasons(pair: Pair) -> Reasons:
    source, target, domain = pair.offer.host, pair.facts.host, pair.domain
    if not pair.has_older_qemu and not pair.lacks_machine:
        return
    is_older = f"is older than QEMU {source.qemu_version} of {source.name}"
    lacks = f"does not have the VM's machine type {domain.machine}"
    least = source.qemu_version if pair.has_older_qemu else domain.machine_version
    least = max(filter(None, (least, least_qemu(pair))), key=lambda version: parse_version(version) or ())
    what, otherwise = f"{is_older}: a VM moves alive only to the same or a newer QEMU", "; or add --offline"
    if pair.lacks_machine:
        what = f"{is_older}, and {lacks}" if pair.has_older_qemu else lacks
        otherwise = "" if pair.offline else "; --offline does not help"
    yield pair.there(
        f"QEMU {target.qemu_version} {what}", pair.on_target(f"upgrade QEMU to {least} or newer{otherwise}")
    )


def _version_warnings(pair: Pair) -> Reasons:
    source, target = pair.offer.host, pair.facts.host
    old, new = parse_version(source.qemu_version), parse_version(target.qemu_version)
    if not pair.offline and old is not None and new is not None and new[:2] == old[:2] and new < old:
        yield pair.there(
            f"QEMU {target.qemu_version} is a little older than QEMU {source.qemu_version} of {source.name}",
            pair.on_target(f"upgrade QEMU to {source.qemu_version}"),
        )


def _machine_reasons(pair: Pair) -> Reasons:
    domain, offered, target = pair.domain, pair.facts.capabilities, pair.facts.host
    if domain.arch and domain.arch != offered.arch:
        hint = f"choose a host with {domain.arch} CPUs"
        yield pair.there(f"this host's CPUs are {offered.arch}, and the VM's {domain.arch}", hint)
        return
    if domain.needs_kvm and not offered.kvm:
        yield pair.there("KVM is missing (/dev/kvm)", pair.on_target("vgpuctl doctor kvm"))
    if _has_other_kin(pair):
        yield pair.there(
            f"the VM's machine type {domain.machine} exists only in the QEMU of {pair.offer.host.distribution} and "
            f"related distributions, and this host has {target.distribution}",
            f"on {pair.source}: stop the VM, then virsh edit {shlex.quote(pair.offer.name)}: choose a machine type "
            "without their name, such as pc-q35-8.2",
        )
    missing = (
        (domain.has_uefi and not offered.uefi, "UEFI firmware", "apt install ovmf, or dnf install edk2-ovmf"),
        (
            domain.has_secure_boot and not offered.secure_boot,
            "UEFI firmware with secure boot and enrolled keys",
            "apt install ovmf, or dnf install edk2-ovmf",
        ),
        (domain.has_tpm and not offered.tpm, "TPM emulator (swtpm)", "apt or dnf install swtpm swtpm-tools"),
    )
    for is_missing, what, hint in missing:
        if is_missing:
            yield pair.there(f"libvirt finds no {what}, which the VM needs", pair.on_target(hint))


def _kin(distribution: str | None) -> str | None:
    name = (distribution or "").split(" ")[0]
    return None if not name else "rhel" if name in _RHEL_KIN else name


def _has_other_kin(pair: Pair) -> bool:
    source, target = _kin(pair.offer.host.distribution), _kin(pair.facts.host.distribution)
    is_their_own = pair.domain.machine_vendor is not None
    return is_their_own and source is not None and target is not None and source != target


def _machine_warnings(pair: Pair) -> Reasons:
    kins = (_kin(pair.offer.host.distribution), _kin(pair.facts.host.distribution))
    if pair.domain.machine_vendor is not None and None in kins:
        yield pair.there(
            f"whether its QEMU has the VM's machine type {pair.domain.machine} is not known",
            pair.on_target(f"virsh capabilities | grep -F {shlex.quote(pair.domain.machine)}"),
        )


def _network_reasons(pair: Pair) -> Reasons:
    for name in pair.domain.networks:
        network = pair.facts.networks.get(name)
        if network is None:
            yield pair.there(f"libvirt has no network '{name}', which the VM is on", _network_hint(pair, name))
        elif not network.active:
            hint = pair.on_target(f"virsh net-start {shlex.quote(name)}")
            yield pair.there(f"the network '{name}', which the VM is on, is not active", hint)
    for name in pair.domain.interfaces:
        if pair.facts.interfaces is not None and name not in pair.facts.interfaces:
            yield pair.there(
                f"this host has no interface or bridge '{name}', which the VM's network card is on",
                f"create it on {pair.target} (ip link shows what it has); or {_network_edit(pair)}",
            )
    for nic in pair.vm.nics:
        bridge = pair.facts.bridges.get(nic.bridge or "")
        if nic.vlan is not None and bridge is not None and bridge.is_linux_bridge:  # Open vSwitch sets VLANs itself
            try:
                check_nics(pair.facts.snapshot, [replace(nic, mac=None)], GuestHost(bridges=pair.facts.bridges))
            except VgpuctlError as error:
                yield _vlan_reason(pair, nic, error)


def _vlan_reason(pair: Pair, nic: Nic, error: VgpuctlError) -> MigrationReasonResult:
    if (pair.facts.snapshot.hypervisor.libvirt_version or 0) >= LINUX_BRIDGE_VLAN_SINCE:
        return _by_error(pair, error)
    port = f"{nic.bridge}.{nic.vlan}"
    made = f"on both hosts: make the VLAN's interface {port}, and a new bridge for it, of the same name on both"
    return pair.there(error.message, f"{made}; then {_network_edit(pair, 'this bridge and no <vlan>')}")


def _network_hint(pair: Pair, name: str) -> str:
    network, file = shlex.quote(name), shlex.quote(f"{name}.xml")
    copy = pair.on_source(f"virsh net-dumpxml {network} > {file}; scp {file} root@{pair.target}:{file}")
    make = pair.on_target(f"virsh net-define {file}; virsh net-start {network}; virsh net-autostart {network}")
    return f"{copy}; {make}"


def _network_edit(pair: Pair, network: str = "another network") -> str:
    return pair.on_source(f"virsh edit {shlex.quote(pair.offer.name)}: give its card {network}; then stop and start it")


def _by_error(pair: Pair, error: VgpuctlError) -> MigrationReasonResult:
    return pair.there(error.message, None if error.hint is None else pair.on_target(error.hint))


def _uses_hugepages(pair: Pair) -> bool:
    return dict(pair.vm.settings).get("hugepages", "none") != "none"


def _memory_reasons(pair: Pair) -> Reasons:
    offer, facts, needed = pair.offer, pair.facts, pair.offer.memory_mib
    if facts.memory_mib is not None and needed > facts.memory_mib:
        yield pair.there(
            f"the VM has {format_mib(needed)} of memory, and the host has {format_mib(facts.memory_mib)} in all",
            pair.on_source(f"vgpuctl set-vm {shlex.quote(offer.name)} --memory SIZE --drain; it restarts the VM"),
        )
    elif _uses_hugepages(pair):
        try:
            size, nodes = dict(pair.vm.settings)["hugepages"], format_ranges(pair.vm.memory_nodes)
            check_hugepages(needed, size, nodes, facts.topology)
        except VgpuctlError as error:
            yield _by_error(pair, error)
    elif _lacks_memory(pair) and pair.vm.hostdevs and not pair.offline:
        yield pair.there(
            f"{format_mib(facts.free_memory_mib or 0)} of memory are free, and a VM with vGPUs needs all of its "
            f"{format_mib(needed)} at once",
            f"choose another host; or {pair.on_target('stop another VM (vgpuctl list-vms)')}",
        )


def _lacks_memory(pair: Pair) -> bool:
    free = pair.facts.free_memory_mib
    return (
        free is not None
        and not _uses_hugepages(pair)
        and free < pair.offer.memory_mib <= (pair.facts.memory_mib or pair.offer.memory_mib)
    )


def _memory_warnings(pair: Pair) -> Reasons:
    if _lacks_memory(pair) and (pair.offline or not pair.vm.hostdevs):
        free, needed = format_mib(pair.facts.free_memory_mib or 0), format_mib(pair.offer.memory_mib)
        yield pair.there(f"{free} of memory are free, and the VM has {needed}", None)


def _cpu_reasons(pair: Pair) -> Reasons:
    topology = pair.facts.topology
    name = shlex.quote(pair.offer.name)
    set_vm = pair.on_source(f"vgpuctl set-vm {name} --cpu-pin none --drain; it restarts the VM")
    lost = pair.vm.pinned_cpus - topology.online_cpus
    if lost and topology.online_cpus:
        yield pair.there(
            f"the VM is pinned to CPUs {format_ranges(pair.vm.pinned_cpus)}, and {format_ranges(lost)} are missing "
            f"(online: {format_ranges(topology.online_cpus)})",
            set_vm,
        )
    nodes = pair.vm.memory_nodes - topology.node_cpus.keys()
    if nodes and topology.node_cpus:
        yield pair.there(
            f"the VM's memory is bound to NUMA node {format_ranges(pair.vm.memory_nodes)}, and {format_ranges(nodes)} "
            f"is missing (nodes: {format_ranges(topology.node_cpus)})",
            set_vm,
        )
    makers = [_cpu_maker(host) for host in (pair.offer.host, pair.facts.host)]
    if _keeps_cpu(pair) and None not in makers and makers[0] != makers[1]:
        yield pair.there(
            f"this host has {pair.facts.host.cpu}, and {pair.source} has {pair.offer.host.cpu}: a running guest "
            f"crashes when its CPU changes from {makers[0]} to {makers[1]}",
            "add --offline",
        )


def _keeps_cpu(pair: Pair) -> bool:
    """Return whether a running guest goes on with what it knows of the source's CPU."""
    return not pair.offline and pair.domain.needs_kvm


def _cpu_maker(host: MigrationHostResult) -> str | None:
    return next((maker for maker in _CPU_MAKERS if maker in (host.cpu or "")), None)


def _cpu_warnings(pair: Pair) -> Reasons:
    mode, ours, theirs = pair.domain.cpu_mode, pair.offer.host.cpu, pair.facts.host.cpu
    if not _keeps_cpu(pair) or mode not in ("host-passthrough", "host-model", "maximum"):
        return
    if ours is None or theirs is None:
        which = " and ".join(h.name for h in (pair.offer.host, pair.facts.host) if h.cpu is None)
        yield pair.there(
            f"the CPU model of {which} is not known, and the VM has the host's CPU ({mode}): it may crash if "
            f"{pair.target}'s CPU lacks a feature of {pair.source}'s",
            None,
        )
    elif ours != theirs and _cpu_maker(pair.offer.host) == _cpu_maker(pair.facts.host):
        yield pair.there(
            f"the VM has the CPU of its host ({mode}): {pair.source} has {ours}, and this host {theirs}. If it lacks "
            "a feature, the move fails or the guest crashes",
            "compare virsh domcapabilities of both hosts; if this one lacks a feature: choose another host, or add "
            "--offline",
        )


def _tls_reasons(pair: Pair) -> Reasons:
    for host, sends in ((pair.offer.host, True), (pair.facts.host, False)):
        missing = host.missing_certificates
        if pair.needs_tls and missing and (AUTHORITY in missing or not sends):
            what = f"the VM's memory and disks cannot be encrypted: {_are_missing(host)}"
            yield MigrationReasonResult(host.name, what, _tls_hint(host))


def _tls_warnings(pair: Pair) -> Reasons:
    source = pair.offer.host
    if pair.needs_tls and source.missing_certificates and AUTHORITY not in source.missing_certificates:
        yield MigrationReasonResult(
            source.name,
            f"{_are_missing(source)}: {pair.target} asks for a client's certificate, and the move fails, unless its "
            f"{QEMU_CONF} has migrate_tls_x509_verify = 0",
            _tls_hint(source),
        )
    for host in (source, pair.facts.host):
        if pair.needs_tls and host.tls_directory is None:
            yield MigrationReasonResult(
                host.name,
                "whether there are certificates to encrypt the move is not known",
                f"on {host.name}: ls -l {CERTIFICATES}; {QEMU_CONF} may name another directory",
            )


def _tls_hint(host: MigrationHostResult) -> str:
    them = "them" if len(host.missing_certificates) > 1 else "it"
    return (
        f"on {host.name}: put {them} into {host.tls_directory} (libvirt.org/kbase/tlscerts.html); or, on a private "
        "network, add --insecure-network: memory and disks then go unencrypted"
    )


def _are_missing(host: MigrationHostResult) -> str:
    files = host.missing_certificates
    why = ", which libvirt uses because it exists" if host.tls_directory == MIGRATION_CERTIFICATES else ""
    return f"{', '.join(files)} {'are' if len(files) > 1 else 'is'} missing in {host.tls_directory}{why}"
