# SPDX-License-Identifier: Apache-2.0
"""Change a domain's network cards, pinned CPUs, display and driver disc; `domain_edit` uses it.

An existing network card keeps its MAC and PCI address, unless the request names another MAC address.
"""

from __future__ import annotations

from string import ascii_lowercase
from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import parse_nic
from vgpuctl.domain.settings import child
from vgpuctl.errors import Refused
from vgpuctl.model.guest_driver import is_driver_disc
from vgpuctl.model.vm import Nic
from vgpuctl.value import replace

if TYPE_CHECKING:
    from lxml import etree

VGPU_ALIAS_PREFIX = "ua-vgpuctl-"


def set_nics(root: etree._Element, nics: tuple[Nic, ...], default_model: str) -> None:
    """Give a domain these network cards, in this order. Cards of other kinds stay: a VF, or a macvtap device."""
    devices = devices_of(root)
    current = [entry for entry in devices.iterchildren("interface") if parse_nic(entry).has_network]
    for number, nic in enumerate(nics):
        if number < len(current):
            _change_nic(current[number], nic)
        else:
            devices.append(_nic_element(replace(nic, model=nic.model or default_model)))
    for entry in current[len(nics) :]:
        devices.remove(entry)


def _change_nic(entry: etree._Element, nic: Nic) -> None:
    old = parse_nic(entry)
    if (old.network, old.bridge, old.vlan) != (nic.network, nic.bridge, nic.vlan):
        for tag in ("source", "vlan", "virtualport"):
            for old_part in entry.findall(tag):
                entry.remove(old_part)
        _set_source(entry, nic)
    if nic.model is not None and nic.model != old.model:
        child(entry, "model").set("type", nic.model)
    if nic.mac is not None and nic.mac != old.mac:
        child(entry, "mac").set("address", nic.mac)


def _nic_element(nic: Nic) -> etree._Element:
    from lxml import etree

    entry = etree.Element("interface")
    if nic.mac is not None:
        etree.SubElement(entry, "mac").set("address", nic.mac)
    _set_source(entry, nic)
    etree.SubElement(entry, "model").set("type", str(nic.model))
    return entry


def _set_source(entry: etree._Element, nic: Nic) -> None:
    from lxml import etree

    kind = "bridge" if nic.bridge is not None else "network"
    entry.set("type", kind)
    etree.SubElement(entry, "source").set(kind, str(nic.bridge or nic.network))
    if nic.vlan is not None:
        etree.SubElement(etree.SubElement(entry, "vlan"), "tag").set("id", str(nic.vlan))


def set_pins(root: etree._Element, cpus: str, nodes: str) -> None:
    """Run a domain only on these CPUs, with its memory bound to these NUMA nodes; empty: on any, unbound."""
    from lxml import etree

    tune = child(root, "cputune")
    for old in [*tune.findall("vcpupin"), *tune.findall("emulatorpin")]:
        tune.remove(old)
    vcpu = root.find("vcpu")
    if vcpu is not None and "cpuset" in vcpu.attrib:
        del vcpu.attrib["cpuset"]
    if cpus:
        count = int((root.findtext("vcpu") or "1").strip())
        _add_vcpu_pins(tune, range(count), cpus)
        etree.SubElement(tune, "emulatorpin").set("cpuset", cpus)
    elif len(tune) == 0:
        root.remove(tune)
    numa = child(root, "numatune")
    for old in numa.findall("memory"):
        numa.remove(old)
    if nodes:
        memory = etree.SubElement(numa, "memory")
        memory.set("mode", "strict")
        memory.set("nodeset", nodes)
    elif len(numa) == 0:
        root.remove(numa)


def fit_pins(root: etree._Element, count: int) -> None:
    """Fit the pins of a domain's vCPUs to their number: new vCPUs run where the first one does."""
    tune = root.find("cputune")
    pins = [] if tune is None else tune.findall("vcpupin")
    if tune is None or not pins:
        return
    present = {str(pin.get("vcpu")) for pin in pins}
    for pin in pins:
        if int(pin.get("vcpu", "0")) >= count:
            tune.remove(pin)
    _add_vcpu_pins(tune, [n for n in range(count) if str(n) not in present], str(pins[0].get("cpuset")))


def _add_vcpu_pins(tune: etree._Element, numbers: range | list[int], cpus: str) -> None:
    from lxml import etree

    for number in numbers:
        pin = etree.SubElement(tune, "vcpupin")
        pin.set("vcpu", str(number))
        pin.set("cpuset", cpus)


def set_display(root: etree._Element, *, shown: bool, needs_gl: bool) -> None:
    """Show the screen of a domain's first vGPU in its console, in place of its video card; or the other way round.

    Raises:
        Refused: the domain has no vGPU of vgpuctl, or no console.
    """
    from lxml import etree

    devices = devices_of(root)
    vgpus = [d for d in devices.iterchildren("hostdev") if _alias(d).startswith(VGPU_ALIAS_PREFIX)]
    for device in vgpus:
        for name in ("display", "ramfb"):
            device.attrib.pop(name, "")
    if shown and (not vgpus or devices.find("graphics") is None):
        raise Refused(
            f"{root.findtext('name')} has no vGPU, or no graphics console in which to show its screen",
            hint=f"virsh edit {root.findtext('name')}",
        )
    if shown:
        show_first_vgpu(vgpus[0])
    for video in devices.findall("video"):
        devices.remove(video)
    card = "virtio" if root.find("os/type[@arch='aarch64']") is not None else "vga"
    etree.SubElement(etree.SubElement(devices, "video"), "model").set("type", "none" if shown else card)
    for graphics in devices.findall("graphics[@type='egl-headless']"):
        devices.remove(graphics)
    if shown and needs_gl:
        etree.SubElement(devices, "graphics").set("type", "egl-headless")


def show_first_vgpu(device: etree._Element) -> None:
    """Show a vGPU's screen in the console, and the firmware's output on it before the guest's driver runs."""
    device.set("display", "on")
    device.set("ramfb", "on")


def devices_of(root: etree._Element) -> etree._Element:
    """Return a domain's devices; a domain without any gets an empty element."""
    return child(root, "devices")


def _alias(device: etree._Element) -> str:
    alias = device.find("alias")
    return "" if alias is None else str(alias.get("name", ""))


def set_pci_window(root: etree._Element, mib: int, host_width: bool) -> None:
    """Set the window for PCI devices above 4 GiB; `host_width`: a KVM guest's addresses get the host's width too.

    Only a CPU of the mode host-passthrough can have that (libvirt, formatdomain: maxphysaddr).

    Raises:
        Refused: the domain has no root complex of PCI Express.
    """
    from lxml import etree

    controller = root.find("devices/controller[@model='pcie-root']")
    if controller is None:
        raise Refused(
            f"the definition of {root.findtext('name')} has no pcie-root, and only a q35 machine has room for big BARs",
            hint=f"virsh edit {root.findtext('name')}: machine='q35'",
        )
    window = controller.find("pcihole64")
    window = etree.SubElement(controller, "pcihole64") if window is None else window
    window.set("unit", "KiB")
    window.text = str(mib << 10)
    cpu = root.find("cpu[@mode='host-passthrough']")
    if host_width and root.get("type") == "kvm" and cpu is not None and cpu.find("maxphysaddr") is None:
        etree.SubElement(cpu, "maxphysaddr").set("mode", "passthrough")


def set_driver_disc(root: etree._Element, path: str) -> None:
    """Give a domain this disc with its guest's driver in place of the one that it has; "" for none."""
    from lxml import etree

    devices = devices_of(root)
    cdroms = devices.findall("disk[@device='cdrom']")
    for disk in cdroms:
        source = disk.find("source")
        if source is not None and is_driver_disc(source.get("file")):
            devices.remove(disk)
    if not path:
        return
    bus = "sata" if root.find("os/type[@arch='aarch64']") is None else "scsi"
    taken = {target.get("dev") for target in devices.iterfind("disk/target")}
    disk = etree.SubElement(devices, "disk", type="file", device="cdrom")
    etree.SubElement(disk, "driver", name="qemu", type="raw")
    source = etree.SubElement(disk, "source", file=path, startupPolicy="optional")
    etree.SubElement(source, "seclabel", model="dac", relabel="no")
    free = (f"sd{letter}" for letter in ascii_lowercase if f"sd{letter}" not in taken)
    etree.SubElement(disk, "target", dev=next(free), bus=bus)
    etree.SubElement(disk, "readonly")
