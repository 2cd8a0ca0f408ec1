# SPDX-License-Identifier: Apache-2.0
"""Whole PCI functions: a plain VF (`sriov-vf`), or a GPU with every function of its slot (`passthrough`).

There is no device to create: libvirt detaches the function from its driver at start and reattaches it at stop
(managed='yes'). vgpuctl only checks first whether anybody else holds it.
"""

from __future__ import annotations

from vgpuctl.backends.base import GpuBackend, Movability, require_iommu
from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoCapacity, Refused
from vgpuctl.gpu.profiles import vfs_off_error
from vgpuctl.makers import breaks_at_reset, disable_vfs_hint, maker_of
from vgpuctl.model.gpu import Backend, Gpu, GpuFunction, GpuMode, IommuGroupMember
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import NOT_RUNNING_STATES, AssignedVgpu

HARMLESS_DRIVERS = (None, "vfio-pci", "pci-stub")


class SriovVfBackend(GpuBackend):
    """The sriov-vf backend: one plain VF."""

    name = Backend.SRIOV_VF
    mode = GpuMode.SRIOV
    on_vfs = True

    def movability(self, gpu: Gpu, function: str, params: str) -> Movability:
        """Ask which VFIO driver has the VF: libvirt binds it when the VM starts."""
        current = gpu.find_function(function)
        driver = None if current is None else current.driver
        able = maker_of(gpu).movable_vf_drivers
        if driver in able:
            return Movability(True)
        if driver == "vfio-pci" or not able:
            names = f"; with {' or '.join(able)} it could" if able else ""
            return Movability(False, f"vfio-pci cannot read the state of a VF{names}", maker_of(gpu).movable_vf_hint)
        return Movability(None, f"its VFIO driver is known only while its VM runs; {' or '.join(able)} can")

    def assign(
        self,
        snapshot: Snapshot,
        gpu: Gpu,
        *,
        force_console: bool,
        force_reset: bool = False,
        fellows: frozenset[str] = frozenset(),
    ) -> tuple[AssignedVgpu, ...]:
        """Return the first free VF, one without a host driver if possible."""
        if gpu.backend is None or (gpu.vfs_total and not gpu.vfs_enabled):
            raise vfs_off_error(gpu)
        if gpu.backend is not self.name:
            raise HostCannot(
                f"{gpu.address} has no plain VFs: its backend is {gpu.backend}",
                hint="use --profile with its vGPU profiles" if gpu.types else "vgpuctl list-gpus --all",
                check="mode",
                gpu=gpu.address,
                backend=gpu.backend,
            )
        _refuse_taken(snapshot, gpu, (gpu.address,))
        taken = {v.function for v in snapshot.vgpus_on(gpu.address)}
        free = [f for f in gpu.functions if f.address not in taken and _is_unused_by_host(gpu, f)]
        if not free:
            raise _no_free_vf_error(snapshot, gpu, taken)
        free.sort(key=lambda f: f.driver not in HARMLESS_DRIVERS)
        self.check(snapshot, gpu, free[0], force_console=False)
        return _assigned_functions(self.name, gpu, free[0].address)

    def check(self, snapshot: Snapshot, gpu: Gpu, function: GpuFunction, *, force_console: bool) -> None:
        """Check for the IOMMU."""
        require_iommu(function)


def _is_unused_by_host(gpu: Gpu, function: GpuFunction) -> bool:
    """Say whether the host can spare a VF: always a GPU's; another device's only without a host driver."""
    return gpu.is_display_class or function.driver in HARMLESS_DRIVERS


def _no_free_vf_error(snapshot: Snapshot, gpu: Gpu, taken: set[str]) -> NoCapacity:
    names = ", ".join(sorted({v.vm or v.carrier for v in snapshot.vgpus_on(gpu.address)}))
    used_by_host = sorted(f.address for f in gpu.functions if f.address not in taken and not _is_unused_by_host(gpu, f))
    note = f"; the host's own drivers have {', '.join(used_by_host)}" if used_by_host else ""
    return NoCapacity(
        f"no VF of {gpu.address} is free: {len(taken)} of {len(gpu.functions)} in use by {names or 'nobody'}{note}",
        hint=f"vgpuctl show-gpu {gpu.address}",
        gpu=gpu.address,
    )


def _refuse_taken(snapshot: Snapshot, gpu: Gpu, functions: tuple[str, ...]) -> None:
    """Refuse functions that any VM holds, no matter under which GPU it got them."""
    for vgpu in snapshot.vgpus:
        if vgpu.carrier in functions or vgpu.function in functions:
            raise InUse(
                f"{vgpu.function} is in use by {vgpu.holder_text}",
                hint=f"vgpuctl show-gpu {gpu.address}",
                gpu=gpu.address,
                function=vgpu.function,
                vm=vgpu.vm,
            )


def _assigned_functions(backend: Backend, gpu: Gpu, *functions: str) -> tuple[AssignedVgpu, ...]:
    return tuple(
        AssignedVgpu(index=n, backend=backend, gpu=gpu.address, function=f, carrier=f, profile=None)
        for n, f in enumerate(functions)
    )


class PassthroughBackend(GpuBackend):
    """The passthrough backend: the GPU's function and the other functions of its slot."""

    name = Backend.PASSTHROUGH
    mode = GpuMode.PASSTHROUGH
    takes_whole_gpu = True

    def movability(self, gpu: Gpu, function: str, params: str) -> Movability:
        """Say no: QEMU moves nothing of a device whose driver cannot read its state."""
        return Movability(False, "no driver can read the state of a whole GPU")

    def has_carrier(self, gpu: Gpu, function: str) -> bool:
        """Look also for the other functions of its slot; with VFs on they are not read."""
        return function == gpu.address or gpu.vfs_enabled > 0 or function in {m.address for m in gpu.group_members}

    def assign(
        self,
        snapshot: Snapshot,
        gpu: Gpu,
        *,
        force_console: bool,
        force_reset: bool = False,
        fellows: frozenset[str] = frozenset(),
    ) -> tuple[AssignedVgpu, ...]:
        """Return the GPU and its companions, if nothing is on it."""
        taken = snapshot.vgpus_on(gpu.address)
        if taken:
            names = ", ".join(sorted({v.holder_text for v in taken}))
            raise InUse(
                f"{gpu.address} is in use by {names}; it can be passed through only when none of its vGPUs and VFs "
                "are in use",
                hint=f"vgpuctl show-gpu {gpu.address}",
                gpu=gpu.address,
                vgpus=[v.carrier for v in taken],
            )
        if not gpu.vendor_id:
            raise InvalidInput(f"{gpu.address} is not a PCI device, so it cannot be passed through", gpu=gpu.address)
        _refuse_reset(gpu, force_reset=force_reset)
        self._check_alone(snapshot, gpu, gpu.whole_function, force_console=force_console, fellows=fellows)
        functions = (gpu.address, *(m.address for m in gpu.group_members if m.same_slot))
        _refuse_taken(snapshot, gpu, functions)
        return _assigned_functions(self.name, gpu, *functions)

    def check(self, snapshot: Snapshot, gpu: Gpu, function: GpuFunction, *, force_console: bool) -> None:
        """Refuse a GPU that has VFs enabled, is the console or in use, or shares a busy IOMMU group."""
        self._check_alone(snapshot, gpu, function, force_console=force_console, fellows=frozenset())

    def _check_alone(
        self, snapshot: Snapshot, gpu: Gpu, function: GpuFunction, *, force_console: bool, fellows: frozenset[str]
    ) -> None:
        """Check everything but whether a VM has it. `fellows`: GPUs that the same VM gets; they may share its group."""
        require_iommu(function)
        if gpu.vfs_enabled:
            raise HostCannot(
                f"{gpu.address} has {count_text(gpu.vfs_enabled, 'VF')} enabled; it can be passed through only with "
                "all VFs off",
                hint=disable_vfs_hint(gpu),
                check="vfs-on",
                gpu=gpu.address,
                vfs=gpu.vfs_enabled,
            )
        refuse_drawing_gpu(snapshot, gpu)
        if gpu.console_reasons and not force_console:
            raise Refused(
                f"{gpu.address} is this host's console: {'; '.join(gpu.console_reasons)}",
                hint="--force-console passes it through anyway; the host's screen goes dark",
                gpu=gpu.address,
                reasons=list(gpu.console_reasons),
            )
        if not gpu.is_display_class and function.driver not in HARMLESS_DRIVERS:
            raise InUse(
                f"{gpu.address} ({gpu.model}) is used by the host: its driver is {function.driver}",
                hint=f"{_detach_command(gpu.address)} detaches it, if nothing on the host needs it",
                gpu=gpu.address,
                driver=function.driver,
            )
        self._check_group(snapshot, gpu, fellows)

    def _check_group(self, snapshot: Snapshot, gpu: Gpu, fellows: frozenset[str]) -> None:
        """Check that every other endpoint of the IOMMU group is unused: a group goes to one VM (kernel vfio.rst)."""
        for member in gpu.group_members:
            goes_along = _is_same_vm(snapshot, gpu, member) or _is_function_of(member.address, fellows)
            holder = None if goes_along else _find_holder(snapshot, member)
            if holder is not None:
                raise InUse(
                    f"{gpu.address} shares IOMMU group {gpu.iommu_group} with {member.address}, which {holder} uses",
                    hint="all devices of an IOMMU group go to the same VM; move the card to a slot with its own group",
                    gpu=gpu.address,
                    member=member.address,
                    vm=holder,
                )
            if not member.same_slot and not goes_along and member.driver not in HARMLESS_DRIVERS:
                raise InUse(
                    f"{gpu.address} shares IOMMU group {gpu.iommu_group} with {member.address}, "
                    f"which the driver {member.driver} holds",
                    hint=f"{_detach_command(member.address)} detaches it, if the host does not need it",
                    gpu=gpu.address,
                    member=member.address,
                    driver=member.driver,
                )


def refuse_drawing_gpu(snapshot: Snapshot, gpu: Gpu) -> None:
    """Refuse to give a GPU away as a whole while QEMU draws on it for running VMs.

    Raises:
        InUse: naming the VMs.
    """
    drawn = [vm.name for vm in snapshot.vms_drawn_by(gpu) if vm.state not in NOT_RUNNING_STATES]
    if drawn:
        raise InUse(
            f"QEMU draws on {gpu.address} for {', '.join(drawn)} (mode virtio-gpu)",
            hint=f"vgpuctl stop-vm {' '.join(drawn)}",
            gpu=gpu.address,
            vms=drawn,
        )


def _refuse_reset(gpu: Gpu, *, force_reset: bool) -> None:
    """Refuse a GPU that VFIO's reset breaks: it resets the GPU when a VM takes it, and when it leaves it.

    Raises:
        Refused: with what else a VM can have of it.
    """
    if breaks_at_reset(gpu) and not force_reset:
        raise Refused(
            f"{gpu.address} ({gpu.model}) is lost until the host boots, once a VM has it and it is reset",
            hint="give VMs its VFs, which are not affected (load the driver gim); --force-reset passes it through "
            "anyway",
            gpu=gpu.address,
        )


def _is_same_vm(snapshot: Snapshot, gpu: Gpu, member: IommuGroupMember) -> bool:
    """Return whether the VM that has the GPU also holds another function of its group (a start, not a new VM)."""
    holder = _find_holder(snapshot, member)
    return holder is not None and holder in {v.vm for v in snapshot.vgpus if v.carrier == gpu.address}


def _is_function_of(address: str, gpus: frozenset[str]) -> bool:
    """Return whether a function is in the slot of one of these GPUs, so that it goes to a VM with that GPU."""
    return any(address.rpartition(".")[0] == gpu.rpartition(".")[0] for gpu in gpus)


def _detach_command(address: str) -> str:
    return f"virsh nodedev-detach pci_{address.replace(':', '_').replace('.', '_')}"


def _find_holder(snapshot: Snapshot, member: IommuGroupMember) -> str | None:
    vgpu_carriers = {(v.vm_uuid, v.carrier) for v in snapshot.vgpus}
    for vm in snapshot.vms:
        is_unreserved = (
            vm.record is not None and vm.record.reserve_while_running and (vm.uuid, member.address) not in vgpu_carriers
        )
        if not is_unreserved and any(h.carrier == member.address for h in vm.hostdevs):
            return vm.name
    return next((c.vm for c in snapshot.claims if c.carrier == member.address), None)
