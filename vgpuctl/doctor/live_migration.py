# SPDX-License-Identifier: Apache-2.0
"""Whether VMs with vGPUs can leave this host while they run, and be saved: by versions, drivers and parameters.

What each backend and maker needs is stated there. A host on which VMs cannot move works well otherwise: so this check
never fails. Certificates for TLS are only mentioned: where they are missing, migrate-vm needs --insecure-network.

Source: docs.openstack.org/nova (virtual-gpu, pci-passthrough) for versions.
"""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.backends.base import OTHER_LIVE_MOVE
from vgpuctl.backends.versions import is_kernel_too_old_to_move, programs_too_old_to_move
from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    not_applicable,
    ok,
    require_snapshot,
    shorten,
    unknown,
    warn,
)
from vgpuctl.doctor.virtualization import KERNEL_RELEASE, PCI_DRIVERS
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.observe.migration_host import CLIENT_FILES, QEMU_CONF, SERVER_FILES, certificate_directory
from vgpuctl.observe.vgpu_migration import params_of

OS_RELEASE = "/etc/os-release"
_WITHOUT_TLS = "migrate-vm needs --insecure-network"
CERTIFICATE_DIRECTORIES = ("/etc/pki/libvirt-migrate", "/etc/pki/qemu")
"""libvirt's own, of which the first counts if it exists; qemu.conf can name another one."""


def _divided_gpus(snapshot: Snapshot) -> list[Gpu]:
    return [g for g in snapshot.gpus if g.backend is not None and not backend_for(g.backend).takes_whole_gpu]


def _check(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = _divided_gpus(snapshot)
    if not gpus:
        return not_applicable("no GPU here has vGPUs or VFs for VMs, and a VM with a whole GPU cannot move")
    drivers = context.folder(PCI_DRIVERS)
    if drivers.problem is not None:
        return unknown(drivers.problem)
    stay = [(gpu, why) for gpu in gpus if (why := _why_stays(gpu, drivers.names or ())) is not None]
    stay_lines = [f"{addresses}: {why}" for why, addresses in _by_reason(stay).items()]
    movable = [gpu for gpu in gpus if all(gpu is not other for other, _ in stay)]
    if not movable:
        return not_applicable(*shorten(stay_lines))
    if not snapshot.hypervisor.available:
        return unknown(f"libvirt does not answer: {snapshot.hypervisor.reason}")
    old = _too_old(context, snapshot, movable)
    certificates, are_missing = _certificate_line(context)
    lines = [*stay_lines, *_parameter_lines(snapshot), *_distribution_lines(context, movable), certificates]
    names = ", ".join(gpu.address for gpu in movable)
    unsafe = f" (certificates for TLS are missing: {_WITHOUT_TLS})" if are_missing else ""
    if old:
        return warn(
            f"VMs with vGPUs of {names} can neither move while they run nor be saved: {'; '.join(old)}",
            *shorten(lines),
            fix="use newer versions of these programs (Ubuntu 24.04, RHEL 10; without NVIDIA's support, Debian 13)",
        )
    return ok(f"VMs with vGPUs of {names} can move while they run{unsafe}, and be saved", *shorten(lines))


def _by_reason(stay: list[tuple[Gpu, str]]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for gpu, why in stay:
        reasons[why] = f"{reasons[why]}, {gpu.address}" if why in reasons else gpu.address
    return reasons


def _why_stays(gpu: Gpu, drivers: tuple[str, ...]) -> str | None:
    """Return why VMs with vGPUs of this GPU cannot move, whatever the versions are; None if they can."""
    maker = maker_of(gpu)
    if backend_for(gpu.backend).creates_devices:
        known = backend_for(gpu.backend).movability(gpu, gpu.address, "")
        return None if known.can else known.why_not
    if any(driver in drivers for driver in maker.movable_vf_drivers):
        return None
    hint = f": {maker.movable_vf_hint}" if maker.movable_vf_hint else ""
    return f"vfio-pci cannot read the state of a VF, and no other VFIO driver for it is loaded{hint}"


def _too_old(context: CheckContext, snapshot: Snapshot, gpus: list[Gpu]) -> list[str]:
    backends = [backend_for(gpu.backend) for gpu in gpus]
    kernel = (context.file(KERNEL_RELEASE).text or "").strip()
    least_kernel = max((backend.live_move or OTHER_LIVE_MOVE).kernel for backend in backends)
    old = []
    if is_kernel_too_old_to_move(kernel, least_kernel):
        old.append(f"Linux {'.'.join(map(str, least_kernel))} or newer is needed, and this is {kernel}")
    return [*old, *programs_too_old_to_move(backends, snapshot.hypervisor)]


def _parameter_lines(snapshot: Snapshot) -> list[str]:
    lines = []
    for vgpu in snapshot.vgpus:
        gpu, vm = snapshot.gpu(vgpu.gpu), snapshot.vm(vgpu.vm_uuid or "")
        against = () if gpu is None or vm is None else maker_of(gpu).params_against_moves(params_of(vm, vgpu.carrier))
        if against:
            lines.append(f"VM {vgpu.vm} stays: {', '.join(against)} of its vGPU switches it off")
    return lines


def _distribution_lines(context: CheckContext, gpus: list[Gpu]) -> list[str]:
    release = dict(
        (key.strip(), value.strip().strip("\"'"))
        for key, _, value in (line.partition("=") for line in (context.file(OS_RELEASE).text or "").splitlines())
    )
    name, version = release.get("ID", ""), release.get("VERSION_ID", "")
    rules = (maker_of(gpu).move_rule(name, version) for gpu in gpus)
    return list(dict.fromkeys(rule for rule in rules if rule is not None))


def _certificate_line(context: CheckContext) -> tuple[str, bool]:
    """Say what migrate-vm finds where libvirt looks for certificates for a move, and whether one is missing to send."""
    has_own = context.folder(CERTIFICATE_DIRECTORIES[0]).names is not None
    directory = certificate_directory(context.file(QEMU_CONF).text, has_migration_directory=has_own)
    if directory not in CERTIFICATE_DIRECTORIES:
        return f"{QEMU_CONF} names {directory} for the certificates for TLS: without them, {_WITHOUT_TLS}", False
    names = context.folder(directory).names or ()
    ways = {"from": CLIENT_FILES, "to": SERVER_FILES}
    lacking = {way: [f for f in files if f not in names] for way, files in ways.items()}
    missing = dict.fromkeys(file for files in lacking.values() for file in files)
    if not missing:
        return f"{directory} has the certificates for TLS: migrate-vm sends memory encrypted", False
    way = " and ".join(way for way, files in lacking.items() if files)
    line = f"not in {directory}: {', '.join(missing)}; VMs move {way} this host only with --insecure-network"
    return line, bool(lacking["from"])


def _paths(snapshot: Snapshot) -> PathsToRead:
    if not _divided_gpus(snapshot):
        return PathsToRead()
    return PathsToRead(files=(KERNEL_RELEASE, OS_RELEASE, QEMU_CONF), folders=(PCI_DRIVERS, *CERTIFICATE_DIRECTORIES))


CHECKS = (
    Check(
        id="live-migration",
        title="the move of running VMs with vGPUs to another host",
        looks_at=(
            f"the versions of the kernel, libvirt and QEMU, `{PCI_DRIVERS}`, the vGPUs' parameters, `{OS_RELEASE}`, "
            f"`{QEMU_CONF}`, {', '.join(f'`{directory}`' for directory in CERTIFICATE_DIRECTORIES)}"
        ),
        run=require_snapshot(_check),
        find_paths=_paths,
        explains=("not-movable", "libvirt-failed"),
        needs_vms=True,
    ),
)
