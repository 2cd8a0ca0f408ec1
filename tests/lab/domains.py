"""The tiny guest L3 as libvirt domains: definition, waiting for what it says on its serial console, shutdown.

For tests of the lab, and for tests that need a domain which vgpuctl did not make.
"""

from __future__ import annotations

import re

from tests.lab.machine import Lab

READY = "vgpulab-guest ready"
KERNEL = """<kernel>/var/lib/vgpulab/vmlinuz</kernel>
    <initrd>/var/lib/vgpulab/initrd</initrd>
    <cmdline>console=ttyS0 quiet mitigations=off no_timer_check nokaslr panic=-1</cmdline>"""
DISK = """<disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='/var/lib/libvirt/images/tiny.qcow2'/>
      <target dev='vda' bus='virtio'/>
    </disk>"""


def serial_log(name: str) -> str:
    """Where a domain made by `tiny_domain` keeps what its guest prints."""
    return f"/var/log/libvirt/qemu/{name}-serial.log"


def tiny_domain(name: str, *, devices: str = "", memory_mib: int = 128, disk: bool = False) -> str:
    """A KVM guest on a q35 board; boots the kernel directly, or from the disk image."""
    return f"""<domain type='kvm'>
  <name>{name}</name>
  <memory unit='MiB'>{memory_mib}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    {"" if disk else KERNEL}
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
    """A host device by its PCI address, as `devices` of `tiny_domain`."""
    domain, bus, slot, function = re.split(r"[:.]", address)
    where = f"domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'"
    kind = "yes" if managed else "no"
    source = f"<source><address {where}/></source>"
    return f"<hostdev mode='subsystem' type='pci' managed='{kind}'>{source}</hostdev>"


def mdev_hostdev(uuid: str) -> str:
    """A mediated device by its UUID, as `devices` of `tiny_domain`."""
    source = f"<source><address uuid='{uuid}'/></source>"
    return f"<hostdev mode='subsystem' type='mdev' model='vfio-pci'>{source}</hostdev>"


def start(lab: Lab, name: str, xml: str) -> None:
    """Defines and starts; returns when libvirt says so."""
    lab.run("virsh define /dev/stdin", stdin=xml)
    lab.run(["virsh", "start", name])


def wait_ready(lab: Lab, name: str, *, timeout: float = 120) -> str:
    """What the guest printed, once it is up."""
    log = serial_log(name)
    lab.run(["timeout", f"{timeout:g}", "wait-for-line", log, READY], timeout=timeout + 30)
    return lab.read(log)


def seen_devices(serial: str) -> list[str]:
    """`vendor:device` of every PCI function that the guest listed, four hexadecimal digits each."""
    return [f"{vendor}:{device}" for vendor, device in re.findall(r"guest pci \S+ 0x(\S+) 0x(\S+)", serial)]


def shut_down(lab: Lab, name: str, *, timeout: float = 60) -> None:
    """Presses the power button and waits until libvirt says that the domain is off."""
    lab.run(["virsh", "shutdown", name])
    lab.wait_until(f"virsh domstate {name} | grep -qx 'shut off'", timeout=timeout)
