# SPDX-License-Identifier: Apache-2.0
"""What every backend states and does, and what their steps share, such as moving a vGPU to its position.

A vGPU's position is NVIDIA's file `placement_id` of a VF or mdev (mixed sizes), and a VF's `gpu_instance_id` (MIG).

The driver puts a new vGPU at the first free placement of its type. Until its VM starts, a write moves it. Before the
move it may occupy the placement of another vGPU: so each command takes the GPU's make lock to create and move a vGPU.
A GPU instance is in neither claim nor record: its number may change at a boot.
A GPU without mixed sizes shows 65535 (VF) or "Not Applicable" (mdev); older drivers have no file.
Errno of a write: EIO placement not available, EPERM a VM uses the vGPU, ENXIO no vGPU. With MIG the driver takes the
lowest GPU instance with room; a write to `gpu_instance_id` moves the vGPU to another one, with the same errnos.

Sources: kernel_vgpu_mgr.c of NVIDIA's open kernel modules (kvgpumgrCreateRequestVgpu, kvgpumgrSetPlacementId);
gentlemanautomaton/machina, which reads and writes the file of mdevs.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from vgpuctl.errors import DeviceFailed, HostCannot, InUse, NoCapacity, VerifyFailed, VgpuctlError
from vgpuctl.makers import maker_of_vgpus
from vgpuctl.model.gpu import Backend, Gpu, GpuFunction, GpuMode, parse_driver_id
from vgpuctl.model.request import DesignHostdev
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.ports.step import Step
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

REMOVE_DEADLINE_SECONDS = 30.0
BUSY_RETRY_SECONDS = 5.0
BUSY_PAUSE_SECONDS = 0.2
ATTACH_COMMAND = "virsh attach-device VM FILE --persistent"

GPU_MAKE_LOCK_SECONDS = 15.0


class LiveMoveVersions(Value):
    """The oldest software with which a vGPU moves between hosts while its VM runs, on both of them.

    `between_kinds_libvirt`: the oldest libvirt that moves it to a vGPU of another kind, an mdev to a VF or the reverse.
    Source: OpenStack Nova, doc/source/admin/virtual-gpu.rst; for the kinds, libvirt's NEWS of 11.0.
    """

    libvirt: int
    qemu: int
    kernel: tuple[int, ...] = (5, 18)
    between_kinds_libvirt: int = 11_000_000


OTHER_LIVE_MOVE = LiveMoveVersions(10_000_000, 8_002_002, (6, 8))
"""For functions with a VFIO driver of their maker's, which libvirt chooses from 10.0 on."""


class Movability(Value):
    """Whether a vGPU's driver reads its state while its VM runs: so it can be saved, or moved to another host alive.

    `can` None: not known. `why_not`: the reason, as a clause; also why it is not known. `fix`: what makes it movable.
    """

    can: bool | None = None
    why_not: str | None = None
    fix: str | None = None


class GpuBackend:
    """One kernel interface through which VMs get GPUs: its facts, checks, steps, hostdev and hints.

    This class itself stands for no backend: such a GPU offers nothing now. `name`: its word in records. `mode`: the
    mode of a GPU that has this backend. `creates_devices`: a driver creates each vGPU, and a reboot removes it.
    `carrier_has_uuid`: a vGPU is named by a UUID of its own (an mdev), so it may be on any function while its VM's
    definition stays the same. `on_vfs`: each VF carries one, or is one; otherwise the GPU's own function carries all.
    `takes_whole_gpu`: nothing else can be on the GPU. `may_mix_sizes_unseen`: without NVML its driver may still accept
    several sizes on a GPU. `functions_stay_bound`: libvirt must not detach a function from its driver. `min_kernel`,
    `min_libvirt` (libvirt's form: 10000000 is 10.0.0): the oldest with which it works. `display_since`: the oldest
    libvirt that shows a vGPU's screen in the VM's console, None for never. `gpu_reset_hangs_since`: the kernel from
    which on a reset of the GPU hangs the host, None for none. `live_move`: what a move to another host needs while the
    VM runs, None where the carrier is a whole function, which mostly has no driver that can send its state.
    """

    name: Backend
    mode: GpuMode | None = None
    creates_devices = False
    carrier_has_uuid = False
    on_vfs = False
    takes_whole_gpu = False
    may_mix_sizes_unseen = False
    functions_stay_bound = False
    min_kernel: tuple[int, ...] = ()
    min_libvirt = 0
    display_since: int | None = None
    gpu_reset_hangs_since: tuple[int, ...] | None = None
    live_move: LiveMoveVersions | None = None

    def accepts(self, other: GpuBackend) -> bool:
        """Return whether a vGPU recorded with another backend can be on a GPU with this one."""
        return self is other

    def carrier(self, function: str, vm_uuid: str, index: int) -> str:
        """Return the carrier of a VM's vGPU number `index` on a function: by default the function itself."""
        return function

    def function_problem(self, function: GpuFunction) -> str | None:
        """Return what a function lacks that only this backend needs, None for nothing."""
        return None

    def has_carrier(self, gpu: Gpu, function: str) -> bool:
        """Return whether the GPU has this function now."""
        return gpu.find_function(function) is not None

    def is_unproven(self, gpu: Gpu, vgpu: AssignedVgpu) -> bool:
        """Return whether the device on the carrier of an unclaimed vGPU may be somebody else's."""
        return False

    def movability(self, gpu: Gpu, function: str, params: str) -> Movability:
        """Return what is known of moving a vGPU of this GPU, with these parameters, without a look at its driver."""
        maker = maker_of_vgpus(gpu)
        unmovable = maker.params_against_moves(params)
        if unmovable:
            word, verb = ("parameter", "switches") if len(unmovable) == 1 else ("parameters", "switch")
            return Movability(False, f"its vGPU {word} {', '.join(unmovable)} {verb} live migration off")
        if maker.vgpus_can_move is False:
            return Movability(False, f"{maker.name}'s driver cannot read the state of a vGPU")
        unknown = f"nothing is known about {maker.name}'s driver here"
        return Movability(maker.vgpus_can_move, unknown if maker.vgpus_can_move is None else None)

    def assign(
        self,
        snapshot: Snapshot,
        gpu: Gpu,
        *,
        force_console: bool,
        force_reset: bool = False,
        fellows: frozenset[str] = frozenset(),
    ) -> tuple[AssignedVgpu, ...]:
        """Return what a new VM gets of a GPU that it asks for without a profile. `fellows`: GPUs that it gets as well.

        Raises:
            HostCannot, InUse, InvalidInput, NoCapacity, Refused: the GPU cannot be given in that way now.
        """
        raise NotImplementedError

    def check(self, snapshot: Snapshot, gpu: Gpu, function: GpuFunction, *, force_console: bool) -> None:
        """Check the host requirements of a carrier on this GPU; raises HostCannot or Refused."""

    def create_steps(self, vgpu: AssignedVgpu, type_id: str | None, gi_ids: tuple[int, ...] = ()) -> tuple[Step, ...]:
        """Return the steps that create the carrier's device; none where libvirt binds the function at start.

        `gi_ids`: the GPU instances to try, best first; if empty, the driver chooses.
        """
        return ()

    def move_steps(self, vgpu: AssignedVgpu) -> tuple[Step, ...]:
        """Return the steps that move an existing device to its placement; none where it has none that can change."""
        return ()

    def remove_steps(self, vgpu: AssignedVgpu) -> tuple[Step, ...]:
        """Return the steps that remove it; none where libvirt reattaches the function at stop."""
        return ()

    def hostdev(self, vgpu: AssignedVgpu) -> DesignHostdev:
        """Return how a domain refers to the carrier: by default to a PCI function."""
        return DesignHostdev("pci", vgpu.carrier, managed=not self.functions_stay_bound, alias=hostdev_alias(vgpu))

    def removal_commands(self, carrier: str) -> tuple[str, ...]:
        """Return the commands that remove a vGPU of another program by hand; none where a VM only uses a function."""
        return ()

    def usage_commands(self, vgpu: AssignedVgpu) -> tuple[str, ...]:
        """Return the commands that give the vGPU to a VM of somebody else.

        For a PCI function virt-install would write managed='yes', with which libvirt waits forever for a vendor's VF.
        So the hostdev element goes into the XML.
        """
        return (
            ATTACH_COMMAND,
            "virt-install --print-xml > VM.xml, put the element before </devices>, virsh define VM.xml",
        )


def hostdev_alias(vgpu: AssignedVgpu) -> str:
    """Return the user alias that marks a managed device in a domain; libvirt requires the prefix ua-."""
    return f"ua-vgpuctl-{vgpu.index}"


def require_iommu(function: GpuFunction) -> None:
    """Refuse a PCI carrier without an IOMMU group: VFIO cannot give it to a VM."""
    if function.iommu_group is None:
        raise HostCannot(
            f"{function.address} has no IOMMU group, so no VM can use it",
            hint="turn the IOMMU on in the firmware; what else is missing: vgpuctl doctor iommu",
            check="iommu",
            function=function.address,
        )


def vfio_nodes(host: Host, function_path: str) -> tuple[str, ...]:
    """Return the device nodes through which a VM holds a carrier: the IOMMU group's and iommufd's."""
    nodes = []
    with contextlib.suppress(FileNotFoundError):
        nodes.append(f"/dev/vfio/{host.sysfs.readlink(f'{function_path}/iommu_group').rpartition('/')[2]}")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        nodes += [f"/dev/vfio/devices/{name}" for name in host.sysfs.listdir(f"{function_path}/vfio-dev")]
    return tuple(nodes)


def refuse_if_held(host: Host, carrier: str, function_path: str) -> None:
    """Refuse to remove a device that a process has open. An unreadable list does not count as "nobody".

    Raises:
        InUse: a process holds it, or that cannot be read.
    """
    try:
        holders = host.processes.find_holders(vfio_nodes(host, function_path))
    except OSError as error:
        raise InUse(
            f"cannot determine whether {carrier} is in use", hint="run this as root", carrier=carrier
        ) from error
    if holders:
        users = ", ".join(f"{h.command} (pid {h.pid})" for h in holders)
        raise InUse(
            f"{carrier} is in use by {users}",
            hint="stop the VM first",
            carrier=carrier,
            pids=[h.pid for h in holders],
        )


def verify_params(host: Host, vgpu: AssignedVgpu, path: str) -> None:
    """Read a vGPU's plugin parameters back. The driver may list them in another order.

    Raises:
        VerifyFailed: one of them is missing.
    """
    if not vgpu.params:
        return
    text = host.sysfs.read(path).strip()
    if not set(vgpu.params.split(",")) <= set(text.replace(",", " ").split()):
        raise VerifyFailed(
            f"{vgpu.carrier} was given the parameters {vgpu.params} but reads back '{text}'",
            hint="journalctl -k -n 20",
            path=path,
        )


def write_error(error: OSError, action: str, path: str, hint: str | None = None) -> VgpuctlError:
    """Return the error for a write that the kernel or driver refused, with its errno and path."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return DeviceFailed(
        f"{action} failed: {error.strerror or error} ({name}) writing {path}",
        hint=hint or "journalctl -k -n 20 shows the kernel log",
        errno=error.errno,
        errno_name=name,
        path=path,
    )


def _placement_path(vgpu: AssignedVgpu) -> str:
    """Return the path of the vGPU's `placement_id`."""
    bus = "mdev" if vgpu.backend in (Backend.MDEV_PF, Backend.MDEV_VF) else "pci"
    return f"/sys/bus/{bus}/devices/{vgpu.carrier}/nvidia/placement_id"


def _read_attribute(host: Host, path: str, carrier: str) -> str | None:
    """Return the text of a file of an existing vGPU; None if the driver has no such file.

    Raises:
        DeviceFailed: it cannot be read.
    """
    try:
        return host.sysfs.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        raise DeviceFailed(
            f"cannot read the placement of {carrier}: {error.strerror or error} ({name}) reading {path}",
            hint="journalctl -k -n 20 shows the kernel log",
            errno=error.errno,
            path=path,
        ) from error


def move_to_placement(host: Host, vgpu: AssignedVgpu) -> None:
    """Write the placement, unless the vGPU is there already or has no writable placement.

    A vGPU that shows no placement may still accept one: some drivers show an mdev's only while a VM uses it. If the
    driver refuses the write then, mixed sizes are off.
    """
    requested, path = vgpu.placement_id, _placement_path(vgpu)
    text = _read_attribute(host, path, vgpu.carrier) if requested is not None else None
    current = parse_driver_id(text or "")
    if text is None or requested == current:
        return
    try:
        host.sysfs.write(path, f"{requested}\n")
    except OSError as error:
        if error.errno != errno.EIO:
            raise write_error(error, f"moving {vgpu.carrier} to placement {requested}", path) from error
        if current is None:
            return
        raise NoCapacity(
            f"no room for {vgpu.profile} at placement {requested} of {vgpu.gpu}: the driver refused to move "
            f"{vgpu.carrier} there from placement {current}",
            hint=f"vgpuctl show-gpu {vgpu.gpu} shows every placement",
            gpu=vgpu.gpu,
            placement_id=requested,
            errno=error.errno,
            path=path,
        ) from error


def move_to_gpu_instance(host: Host, vgpu: AssignedVgpu, gi_ids: tuple[int, ...]) -> None:
    """Move a new vGPU into the first of these GPU instances that accepts it.

    An instance that was filled meanwhile refuses it (EIO), and the next one is tried. If none accepts it, or the driver
    has no such file, the vGPU stays where the driver put it.

    Raises:
        DeviceFailed: the file cannot be read or written.
        VerifyFailed: the write succeeded, but the vGPU is in another instance.
    """
    path = f"{_placement_path(vgpu).rpartition('/')[0]}/gpu_instance_id"
    for gi_id in gi_ids:
        text = _read_attribute(host, path, vgpu.carrier)
        if text is None or parse_driver_id(text) == gi_id:
            return
        try:
            host.sysfs.write(path, f"{gi_id}\n")
        except OSError as error:
            if error.errno == errno.EIO:
                continue
            raise write_error(error, f"moving {vgpu.carrier} to GPU instance {gi_id}", path) from error
        actual = parse_driver_id(_read_attribute(host, path, vgpu.carrier) or "")
        if actual != gi_id:
            raise VerifyFailed(
                f"{vgpu.carrier} was moved to GPU instance {gi_id} but reads back {actual}",
                hint="journalctl -k -n 20",
                wanted=gi_id,
                actual=actual,
            )
        return


def verify_placement(host: Host, vgpu: AssignedVgpu) -> None:
    """Read the placement back.

    Raises:
        VerifyFailed: it is another placement.
    """
    actual = (
        None
        if vgpu.placement_id is None
        else parse_driver_id(_read_attribute(host, _placement_path(vgpu), vgpu.carrier) or "")
    )
    if actual not in (None, vgpu.placement_id):
        raise VerifyFailed(
            f"{vgpu.carrier} was moved to placement {vgpu.placement_id} but reads back {actual}",
            hint="journalctl -k -n 20",
            wanted=vgpu.placement_id,
            actual=actual,
        )


class MoveVgpu(Step):
    """Move an existing vGPU, in no running VM, to its placement: its creator was killed before the move."""

    vgpu: AssignedVgpu

    def describe(self) -> str:
        return f"move vGPU {self.vgpu.profile} on {self.vgpu.function} to placement {self.vgpu.placement_id}"

    def perform(self, host: Host) -> None:
        """Write the placement."""
        if self.vgpu.placement_id is not None:
            with host.claims.gpu_creation_lock(self.vgpu.gpu, GPU_MAKE_LOCK_SECONDS):
                move_to_placement(host, self.vgpu)

    def verify(self, host: Host) -> None:
        verify_placement(host, self.vgpu)

    def undo(self, host: Host) -> None:
        """Nothing: the vGPU is now where its record says."""
