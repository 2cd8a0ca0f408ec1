# SPDX-License-Identifier: Apache-2.0
"""What happens to a host while no vgpuctl runs: its hardware, its kernel, its VMs as other programs change them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.changed.backends import FIRST, MOVED, SECOND, VENDOR_VF, VMS, Kind
from tests.changed.site import Site, truth_of
from vgpuctl.sim.machine import SimFunction
from vgpuctl.sim.state import State

OTHER = "00000000-0000-4000-8000-00000000000a"
"""The uuid of the unmanaged VM; its mdev's ends in b."""
OTHER_MDEV = "00000000-0000-4000-8000-00000000000b"
DISKS = "/var/lib/libvirt/images"
OFF, ON, LAZY = VMS
Act = Callable[[Site, Kind], None]


@dataclass(frozen=True)
class Change:
    """A change. `vms`: how the VM may be before it. `can_come`: what is missing may still come after a boot."""

    name: str
    act: Act
    vms: tuple[str, ...] = (OFF, LAZY)
    only: Callable[[Kind], bool] = lambda kind: True
    can_come: Callable[[Kind], bool] = lambda kind: False

    def vms_of(self, kind: Kind) -> tuple[str, ...]:
        """Return how the VM may be on a host of this kind; none if the change is impossible there."""
        is_held = kind.neighbour == "companion" and self.name.startswith("neighbour") and not self.name.endswith("off")
        return tuple(vm for vm in self.vms if not (is_held and vm == ON)) if self.only(kind) else ()


def _boot(site: Site, kind: Kind) -> None:
    site.swap(lambda text: text)


def _swap(entry: Callable[[Kind], str], *, second: bool = False, address: str = FIRST) -> Act:
    """Boot with another entry for the VM's GPU, or for both; an empty entry leaves the GPU out."""

    def act(site: Site, kind: Kind) -> None:
        new = entry(kind)
        other = (SECOND, new if second else kind.gpu)
        site.swap(lambda _: kind.text(*([(address, new)] if new else []), other))

    return act


def _upgrade(site: Site, kind: Kind) -> None:
    site.swap(lambda _: kind.text((FIRST, kind.changed), (SECOND, kind.changed), kernel=kind.kernel_after))


def _on_driver(driver: str) -> Act:
    return _swap(lambda kind: f"{_without_profiles(kind.gpu)}, driver: {driver}, backend: passthrough")


def _without_profiles(entry: str) -> str:
    return re.sub(r", (vfs: \{[^}]*\}|profiles: \[.*\])", "", entry)


def _lose_device(site: Site, kind: Kind) -> None:
    """Remove the VM's vGPU, as `echo 1 > remove` and `echo 0 > current_vgpu_type` do."""
    truth = truth_of(site)
    record = truth.record("web")
    assert record is not None
    for vgpu in record.vgpus:
        if vgpu.carrier in truth.state.mdevs:
            site.write(("unmdev", vgpu.carrier))
        elif vgpu.carrier in truth.state.vf_types:
            site.write(("type", vgpu.carrier, 0))


def _lose_vfs(site: Site, kind: Kind) -> None:
    site.write(("vfs", FIRST, 0))


# ------------------------------------------------------------------------------ other VMs


def _hostdev(address: str, managed: str) -> str:
    if ":" not in address:
        source = f"<address uuid='{address}'/>"
        return (
            f"<hostdev mode='subsystem' type='mdev' managed='no' model='vfio-pci'><source>{source}</source></hostdev>"
        )
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    source = f"<address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/>"
    return f"<hostdev mode='subsystem' type='pci' managed='{managed}'><source>{source}</source></hostdev>"


def _define_other(site: Site, *devices: str) -> None:
    xml = (
        f"<domain type='kvm'><name>legacy</name><uuid>{OTHER}</uuid><memory unit='MiB'>1024</memory><vcpu>1</vcpu>"
        f"<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>{''.join(devices)}</devices></domain>"
    )
    with site.opened() as host:
        host.hypervisor.define(xml)


def _start(site: Site, uuid: str) -> None:
    with site.opened() as host:
        host.hypervisor.start(uuid)


def _own_functions(state: State) -> list[SimFunction]:
    """Return the functions of the VM's GPU that go with it into a VM: its own and its companions."""
    return [f for f in state.machine.gpus[FIRST].functions if f.kind in ("pf", "extra")]


def _pf_in_other(power: str) -> Act:
    """Give the whole GPU to an unmanaged VM. While that starts, libvirt has bound it to vfio-pci, and no QEMU runs."""

    def act(site: Site, kind: Kind) -> None:
        functions = _own_functions(truth_of(site).state)
        _define_other(site, *(_hostdev(f.address, "yes") for f in functions))
        if power == "starting":
            site.write(*(("driver", f.address, "vfio-pci") for f in functions))
        elif power == "on":
            _start(site, OTHER)

    return act


def _neighbour_in_other(power: str) -> Act:
    """Give an unmanaged VM another VF of the GPU, its audio function, or an mdev beside the VM's."""

    def act(site: Site, kind: Kind) -> None:
        state = truth_of(site).state
        if kind.neighbour == "mdev":
            site.write(("mdev", OTHER_MDEV, FIRST, next(iter(state.machine.gpus[FIRST].types)), state.next_iommu_group))
            _define_other(site, _hostdev(OTHER_MDEV, "no"))
        else:
            wanted = "vf" if kind.neighbour == "vf" else "extra"
            address = [f.address for f in state.machine.gpus[FIRST].functions if f.kind == wanted][-1]
            is_typed = kind.neighbour == "vf" and state.machine.gpus[FIRST].backend == "vendor-vf"
            if is_typed and kind.name != "mig":
                site.write(("type", address, _type_number(state, kind)))
            elif is_typed:
                site.write(("driver", address, "vfio-pci"))
            _define_other(site, _hostdev(address, "no" if is_typed else "yes"))
            if power == "starting" and not is_typed:
                site.write(("driver", address, "vfio-pci"))
        if power == "on":
            _start(site, OTHER)

    return act


def _type_number(state: State, kind: Kind) -> int:
    types = state.machine.gpus[FIRST].types.values()
    return next(t.number for t in types if t.name.endswith(kind.profile))


# ------------------------------------------------------------------------------ the VM itself


def _edit(site: Site, pattern: str, text: str) -> None:
    """Change the VM's definition as `virsh edit` does."""
    with site.opened() as host:
        domain = host.hypervisor.find_domain("web")
        assert domain is not None
        xml = re.sub(pattern, text, domain.xml, flags=re.DOTALL)
        assert xml != domain.xml, pattern
        host.hypervisor.redefine(domain.uuid, xml)


def _remove_hostdev(site: Site, kind: Kind) -> None:
    _edit(site, r"<hostdev\b.*?</hostdev>", "")


def _make_managed(site: Site, kind: Kind) -> None:
    _edit(site, "managed='no'", "managed='yes'")


def _clone(power: str) -> Act:
    """Copy the VM's definition, devices included, as virt-clone does; its disk is a new one."""

    def act(site: Site, kind: Kind) -> None:
        with site.opened() as host:
            domain = host.hypervisor.find_domain("web")
            assert domain is not None
            host.storage.create_volume("default", "web-clone.qcow2", 20 << 30)
            xml = re.sub(r"<uuid>[^<]*</uuid>", f"<uuid>{OTHER}</uuid>", domain.xml, count=1)
            xml = xml.replace("<name>web</name>", "<name>web-clone</name>")
            xml = re.sub(r"<mac address='[^']*'/>", "", xml)
            xml = re.sub(r"<source file='[^']*'/>", f"<source file='{DISKS}/web-clone.qcow2'/>", xml)
            host.hypervisor.define(xml)
            if power == "on":
                host.hypervisor.start(OTHER)

    return act


def _move_disk(*, is_snapshot: bool) -> Act:
    def act(site: Site, kind: Kind) -> None:
        with site.opened() as host:
            domain = host.hypervisor.find_domain("web")
            assert domain is not None
            disk = re.search(r"<source file='([^']*)'/>", domain.xml)
            assert disk is not None
            base = (disk[1], "qcow2") if is_snapshot else ()
            host.storage.create_volume("default", "web.other", 20 << 30, *base)
        _edit(site, re.escape(disk[0]), f"<source file='{DISKS}/web.other'/>")

    return act


def _pause(site: Site, kind: Kind) -> None:
    with site.opened() as host:
        uuid = host._core.read_state().uuids_by_name["web"]
    site.write(("halt", uuid, "paused"))


# ------------------------------------------------------------------------------ the table


def _has_profiles(kind: Kind) -> bool:
    return bool(kind.profile)


def _has_vfs(kind: Kind) -> bool:
    return kind.has_vfs


def _has_vendor_vf(kind: Kind) -> bool:
    return kind.has_vfs and kind.kernel == VENDOR_VF and bool(kind.profile)


CHANGES = (
    Change("nothing", lambda site, kind: None, VMS),
    Change("boot", _boot),
    Change("device gone", _lose_device, (OFF,), _has_profiles),
    Change("VFs gone", _lose_vfs, (OFF, LAZY), _has_vfs, can_come=lambda kind: True),
    Change("VFs gone after a boot", _swap(lambda kind: kind.fewer), only=_has_vfs, can_come=lambda kind: True),
    Change("GPU gone", _swap(lambda kind: "")),
    Change("address moved", _swap(lambda kind: kind.gpu, address=MOVED)),
    Change("other model", _swap(lambda kind: kind.replaced)),
    Change("new kernel or driver", _upgrade, can_come=lambda kind: kind.name == "mdev-pf"),  # its types may come late
    Change("types renamed", _swap(lambda kind: kind.renamed, second=True), only=_has_profiles),
    Change("types renumbered", _swap(lambda kind: kind.renumbered, second=True), only=_has_profiles),
    Change("GPU on vfio-pci", _on_driver("vfio-pci"), only=lambda kind: kind.name != "passthrough"),
    Change("GPU without driver", _on_driver("none"), can_come=lambda kind: True),
    Change("GPU in another VM, off", _pf_in_other("off"), VMS),
    Change("GPU in another VM, starting", _pf_in_other("starting"), (OFF, LAZY)),
    Change("GPU in another VM, on", _pf_in_other("on"), (OFF, LAZY)),
    Change("neighbour in another VM, off", _neighbour_in_other("off"), VMS),
    Change("neighbour in another VM, starting", _neighbour_in_other("starting"), VMS),
    Change("neighbour in another VM, on", _neighbour_in_other("on"), VMS),
    Change("clone, off", _clone("off"), VMS),
    Change("clone, on", _clone("on"), (OFF,)),
    Change("hostdev removed", _remove_hostdev, (OFF, ON)),
    Change("hostdev managed", _make_managed, (OFF, ON), _has_vendor_vf),
    Change("disk under a snapshot", _move_disk(is_snapshot=True), VMS),
    Change("disk moved", _move_disk(is_snapshot=False), VMS),
    Change("VM paused", _pause, (ON,)),
)
