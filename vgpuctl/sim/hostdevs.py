# SPDX-License-Identifier: Apache-2.0
"""The checks of a VM's host devices at its start: libvirt's, then VFIO's, then QEMU's."""

from __future__ import annotations

from vgpuctl.sim import vendor_vf
from vgpuctl.sim.binding import dependent_carriers
from vgpuctl.sim.domain_xml import SimDisplay, SimHostdev
from vgpuctl.sim.host_tree import VFIO_DEV_SINCE
from vgpuctl.sim.machine import SimFunction
from vgpuctl.sim.refusals import VirError, VirErrorNumber
from vgpuctl.sim.state import State

VARIANT_DRIVERS_SINCE = 9_007_000
"""From libvirt 9.7 on, a vendor's own VFIO driver may provide a VF."""
_VIABLE_DRIVERS = ("vfio-pci", "pci-stub", None)


def prepare_hostdevs(state: State, vm_name: str, devices: tuple[SimHostdev, ...]) -> dict[str, str | None]:
    """Check every device of a starting VM. Return the functions that libvirt rebinds, with their current drivers.

    Raises:
        VirError: libvirt, VFIO or QEMU would refuse the device.
    """
    taken: dict[str, str | None] = {}
    for device in devices:
        _check_unused(state, device)
        if device.kind == "mdev":
            if device.carrier not in state.mdevs:
                raise VirError(VirErrorNumber.DEVICE_MISSING, f"mediated device '{device.carrier}' not found")
            continue
        function = _find_function(state, device.carrier)
        if device.managed:
            taken[function.address] = _check_managed(state, function)
        else:
            _check_unmanaged(state, function)
    for device in devices:
        if device.kind == "pci":
            function = state.machine.functions[device.carrier]
            _check_group(state, function, taken)
            _check_vendor_vf(state, vm_name, function)
    return taken


def require_displays(state: State, displays: tuple[SimDisplay, ...]) -> None:
    """Refuse screens as QEMU does, one device after the other, when libvirt has checked and opened all of them.

    A device without a screen, such as one of NVIDIA's C series (hw/vfio/display.c); and a second ramfb, because both
    would be the file etc/ramfb of the firmware's configuration (ramfb_setup, fw_cfg_add_file_callback).
    """
    ramfbs = 0
    for display in displays:
        if not _has_screen(state, display.carrier):
            raise _exited_error("vfio: device doesn't support any (known) display method")
        ramfbs += display.ramfb
        if ramfbs > 1:
            raise _exited_error("duplicate fw_cfg file name: etc/ramfb")


def _exited_error(text: str) -> VirError:
    return VirError(VirErrorNumber.INTERNAL_ERROR, f"internal error: process exited while connecting: {text}")


def _has_screen(state: State, carrier: str) -> bool:
    mdev, number = state.mdevs.get(carrier), state.vf_types.get(carrier)
    if mdev is not None:
        gpu = state.machine.gpus[state.machine.functions[mdev.parent].gpu]
        return not gpu.types[mdev.type_key].name.endswith("C")
    if number is None:
        return False
    gpu = state.machine.gpus[state.machine.functions[carrier].gpu]
    return not gpu.types_by_number[number].name.endswith("C")


def _check_unused(state: State, device: SimHostdev) -> None:
    user = state.carrier_users.get(device.carrier)
    if user is not None:
        kind = "mediated device" if device.kind == "mdev" else "PCI device"
        holder = state.running[user].name
        raise VirError(
            VirErrorNumber.OPERATION_INVALID,
            f"Requested operation is not valid: {kind} {device.carrier} is in use by driver QEMU, domain {holder}",
        )


def _find_function(state: State, address: str) -> SimFunction:
    if not state.machine.has_iommu:
        raise VirError(
            VirErrorNumber.CONFIG_UNSUPPORTED,
            "unsupported configuration: host doesn't support passthrough of host PCI devices",
        )
    if not state.exists(address):
        raise VirError(
            VirErrorNumber.SYSTEM_ERROR,
            f"Device {address} not found: could not access /sys/bus/pci/devices/{address}/config: "
            "No such file or directory",
        )
    return state.machine.functions[address]


def _check_managed(state: State, function: SimFunction) -> str | None:
    """Return the driver that libvirt unbinds a managed device from before it binds vfio-pci."""
    driver = state.driver(function)
    gpu = state.machine.gpus[function.gpu]
    if vendor_vf.is_carrier(state, gpu, function):
        raise VirError(
            VirErrorNumber.INTERNAL_ERROR,
            f"Failed to bind PCI device '{function.address}' to vfio-pci: Invalid argument "
            "(on a real host this hangs: a vendor-specific VF wants managed='no')",
        )
    held = state.used_carriers(dependent_carriers(state, gpu, function))
    if held:
        raise VirError(
            VirErrorNumber.OPERATION_INVALID,
            f"cannot unbind {function.address} from {driver}: {', '.join(held)} is in use (on a real host this hangs)",
        )
    return driver


def _check_unmanaged(state: State, function: SimFunction) -> None:
    driver = state.driver(function)
    gpu = state.machine.gpus[function.gpu]
    has_variant_driver = (
        vendor_vf.is_carrier(state, gpu, function)
        and state.machine.kernel >= VFIO_DEV_SINCE
        and state.machine.libvirt_version >= VARIANT_DRIVERS_SINCE
    )
    if driver not in ("vfio-pci", "pci-stub") and not has_variant_driver:
        raise VirError(
            VirErrorNumber.OPERATION_INVALID,
            f"Requested operation is not valid: Unmanaged PCI device {function.address} must be manually "
            "detached from the host",
        )


def _check_group(state: State, function: SimFunction, taken: dict[str, str | None]) -> None:
    """Check that the IOMMU group is viable for VFIO and that no other VM has it open."""
    for other in state.machine.functions.values():
        if other.group != function.group or other.kind == "port" or not state.exists(other.address):
            continue
        is_viable = other.address in taken or state.driver(other) in _VIABLE_DRIVERS
        is_viable = is_viable or vendor_vf.is_carrier(state, state.machine.gpus[other.gpu], other)
        if not is_viable:
            raise _qemu_error(
                function,
                f"group {function.group} is not viable\nPlease ensure all devices within the iommu_group are "
                f"bound to their vfio bus driver ({other.address} is on {state.driver(other)}).",
            )
        if other.address in state.carrier_users:
            raise _qemu_error(function, f"failed to open /dev/vfio/{function.group}: Device or resource busy")


def _check_vendor_vf(state: State, name: str, function: SimFunction) -> None:
    gpu = state.machine.gpus[function.gpu]
    if vendor_vf.is_carrier(state, gpu, function) and function.address not in state.vf_types:
        raise _qemu_error(
            function,
            f"error getting device from group {function.group}: No such device\nVerify all devices in group "
            f"{function.group} are bound to vfio-<bus> or pci-stub and not already in use (vm='{name}')",
        )


def _qemu_error(function: SimFunction, text: str) -> Exception:
    return VirError(
        VirErrorNumber.INTERNAL_ERROR,
        f"internal error: QEMU unexpectedly closed the monitor: vfio {function.address}: {text}",
    )
