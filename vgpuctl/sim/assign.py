# SPDX-License-Identifier: Apache-2.0
"""What happens to a VM's host devices when it starts: libvirt's checks, then VFIO's, then QEMU's."""

from __future__ import annotations

from vgpuctl.sim import vendor
from vgpuctl.sim.binding import losing
from vgpuctl.sim.domain_xml import WantedDevice
from vgpuctl.sim.host_tree import VFIO_DEV_SINCE
from vgpuctl.sim.libvirt_errors import Code, VirError
from vgpuctl.sim.machine import SimFunction
from vgpuctl.sim.state import State

VARIANTS_SINCE = 9_007_000
"""libvirt 9.7 learnt that a VF can be provided by a vendor's own VFIO driver."""
_HARMLESS = ("vfio-pci", "pci-stub", None)


def prepare(state: State, name: str, wanted: tuple[WantedDevice, ...]) -> dict[str, str | None]:
    """Check every device of a starting VM; return the functions that libvirt takes, with their drivers.

    Raises:
        LibvirtFailed: as libvirt would say it.
    """
    taken: dict[str, str | None] = {}
    for device in wanted:
        _check_unused(state, device)
        if device.kind == "mdev":
            if device.carrier not in state.mdevs:
                raise VirError(Code.DEVICE_MISSING, f"mediated device '{device.carrier}' not found")
            continue
        function = _function(state, device.carrier)
        if device.managed:
            taken[function.address] = _take(state, function)
        else:
            _check_unmanaged(state, function)
    for device in wanted:
        if device.kind == "pci":
            function = state.machine.functions[device.carrier]
            _check_group(state, function, taken)
            _check_vendor(state, name, function)
    return taken


def _check_unused(state: State, device: WantedDevice) -> None:
    user = state.users.get(device.carrier)
    if user is not None:
        what = "mediated device" if device.kind == "mdev" else "PCI device"
        other = state.running[user].name
        raise VirError(
            Code.OPERATION_INVALID,
            f"Requested operation is not valid: {what} {device.carrier} is in use by driver QEMU, domain {other}",
        )


def _function(state: State, address: str) -> SimFunction:
    if not state.machine.iommu:
        raise VirError(
            Code.CONFIG_UNSUPPORTED,
            "unsupported configuration: host doesn't support passthrough of host PCI devices",
        )
    if not state.exists(address):
        raise VirError(
            Code.SYSTEM_ERROR,
            f"Device {address} not found: could not access /sys/bus/pci/devices/{address}/config: "
            "No such file or directory",
        )
    return state.machine.functions[address]


def _take(state: State, function: SimFunction) -> str | None:
    """Return the driver that libvirt takes a managed device from, before it binds vfio-pci."""
    driver = state.driver(function)
    gpu = state.machine.gpus[function.gpu]
    if vendor.is_carrier(state, gpu, function):
        raise VirError(
            Code.INTERNAL_ERROR,
            f"Failed to bind PCI device '{function.address}' to vfio-pci: Invalid argument "
            "(on a real host this hangs: a vendor-specific VF wants managed='no')",
        )
    held = state.used_by(losing(state, gpu, function))
    if held:
        raise VirError(
            Code.OPERATION_INVALID,
            f"cannot unbind {function.address} from {driver}: {', '.join(held)} is in use (on a real host this hangs)",
        )
    return driver


def _check_unmanaged(state: State, function: SimFunction) -> None:
    driver = state.driver(function)
    gpu = state.machine.gpus[function.gpu]
    variant = (
        vendor.is_carrier(state, gpu, function)
        and state.machine.kernel >= VFIO_DEV_SINCE
        and state.machine.libvirt_version >= VARIANTS_SINCE
    )
    if driver not in ("vfio-pci", "pci-stub") and not variant:
        raise VirError(
            Code.OPERATION_INVALID,
            f"Requested operation is not valid: Unmanaged PCI device {function.address} must be manually "
            "detached from the host",
        )


def _check_group(state: State, function: SimFunction, taken: dict[str, str | None]) -> None:
    """Check that every endpoint of the IOMMU group is harmless and nobody else has the group open."""
    for other in state.machine.functions.values():
        if other.group != function.group or other.kind == "port" or not state.exists(other.address):
            continue
        viable = other.address in taken or state.driver(other) in _HARMLESS
        viable = viable or vendor.is_carrier(state, state.machine.gpus[other.gpu], other)
        if not viable:
            raise _qemu(
                function,
                f"group {function.group} is not viable\nPlease ensure all devices within the iommu_group are "
                f"bound to their vfio bus driver ({other.address} is on {state.driver(other)}).",
            )
        if other.address in state.users:
            raise _qemu(function, f"failed to open /dev/vfio/{function.group}: Device or resource busy")


def _check_vendor(state: State, name: str, function: SimFunction) -> None:
    gpu = state.machine.gpus[function.gpu]
    if vendor.is_carrier(state, gpu, function) and function.address not in state.types:
        raise _qemu(
            function,
            f"error getting device from group {function.group}: No such device\nVerify all devices in group "
            f"{function.group} are bound to vfio-<bus> or pci-stub and not already in use (vm='{name}')",
        )


def _qemu(function: SimFunction, text: str) -> Exception:
    return VirError(
        Code.INTERNAL_ERROR,
        f"internal error: QEMU unexpectedly closed the monitor: vfio {function.address}: {text}",
    )
