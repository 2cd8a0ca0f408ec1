"""The tiny guest L3 as a libvirt domain: defines it, waits for its serial console output, and shuts it down.

Used by tests of the lab, and by tests that need a domain that vgpuctl did not create.
"""

from __future__ import annotations

import re

from tests.lab.machine import Lab

READY = "vgpulab-guest ready"
KERNEL = """<kernel>/var/lib/vgpulab/vmlinuz</kernel>
    <initrd>/var/lib/vgpulab/initrd</initrd>
    <cmdline>console=ttyS0 quiet mitigations=off no_timer_check nokaslr panic=-1{options}</cmdline>"""
DISK = """<disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='/var/lib/libvirt/images/tiny.qcow2'/>
      <target dev='vda' bus='virtio'/>
    </disk>"""


def serial_log(name: str) -> str:
    """Return the path of the log with the guest's console output, for a domain from `tiny_domain`."""
    return f"/var/log/libvirt/qemu/{name}-serial.log"


def tiny_domain(name: str, *, devices: str = "", memory_mib: int = 128, disk: bool = False, options: str = "") -> str:
    """Return the XML of a KVM guest with machine type q35. It boots the kernel directly, or from the disk image.

    `options`: more words for the kernel that is booted directly (files/guest/init reads some).
    """
    return f"""<domain type='kvm'>
  <name>{name}</name>
  <memory unit='MiB'>{memory_mib}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    {"" if disk else KERNEL.format(options=options and f" {options}")}
  </os>
  <features><acpi/></features>
  <cpu mode='host-passthrough'/>
  <devices>
    {DISK if disk else ""}
    <controller type='usb' model='none'/>
    <serial type='pty'><log file='{serial_log(name)}' append='off'/><target port='0'/></serial>
    <memballoon model='none'/>
    {devices}
  </devices>
</domain>"""


def pci_hostdev(address: str, *, managed: bool = True) -> str:
    """Return the XML of a PCI host device, for the `devices` argument of `tiny_domain`."""
    domain, bus, slot, function = re.split(r"[:.]", address)
    attributes = f"domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'"
    managed_value = "yes" if managed else "no"
    source = f"<source><address {attributes}/></source>"
    return f"<hostdev mode='subsystem' type='pci' managed='{managed_value}'>{source}</hostdev>"


def mdev_hostdev(uuid: str) -> str:
    """Return the XML of a mediated device, for the `devices` argument of `tiny_domain`."""
    source = f"<source><address uuid='{uuid}'/></source>"
    return f"<hostdev mode='subsystem' type='mdev' model='vfio-pci'>{source}</hostdev>"


def start(lab: Lab, name: str, xml: str) -> None:
    """Define and start a domain; return as soon as libvirt reports that it has started."""
    lab.run("virsh define /dev/stdin", stdin=xml)
    lab.run(["virsh", "start", name])


def wait_ready(lab: Lab, name: str, *, timeout: float = 120) -> str:
    """Wait until the guest is up, then return what it printed."""
    log = serial_log(name)
    lab.run(["timeout", f"{timeout:g}", "wait-for-line", log, READY], timeout=timeout + 30)
    return lab.read(log)


def seen_devices(serial: str) -> list[str]:
    """Return `vendor:device` of every PCI function that the guest listed, with four hexadecimal digits each."""
    return [f"{vendor}:{device}" for vendor, device in re.findall(r"guest pci \S+ 0x(\S+) 0x(\S+)", serial)]


def shut_down(lab: Lab, name: str, *, timeout: float = 60) -> None:
    """Press the power button and wait until libvirt reports that the domain is off."""
    lab.run(["virsh", "shutdown", name])
    lab.wait_until(f"virsh domstate {name} | grep -qx 'shut off'", timeout=timeout)
