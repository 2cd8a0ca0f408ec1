# SPDX-License-Identifier: Apache-2.0
"""The host of a contract test: the simulator, or the real host in the lab, through the same ports.

In the lab, VGPUCTL_CONTRACT names the form of the lab's card. Elsewhere, a scenario defines the card.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.port_values import DomainInfo, NvmlGpu
from vgpuctl.ports.host import Host

VARIABLE = "VGPUCTL_CONTRACT"
FORMS = ("mdev-pf", "mdev-vf", "vendor-vf", "sriov-vf")
PCI = "/sys/bus/pci/devices"
MDEV = "/sys/bus/mdev/devices"

SCENARIO = """version: 1
title: one card for the contract tests
kernel: {kernel}
nvidia: {{driver: 590.48.01}}
storage:
  pools: [{{name: default}}, {{name: vg0, kind: logical, capacity_gib: 1}}]
networks: [{{name: default, forward: nat}}]
gpus:
  - {{model: {model}, backend: {form}, address: "0000:01:00.0"{vfs}}}
"""


@dataclass(frozen=True)
class Site:
    """A host with one card in one form. `gpu` is its PF. The type IDs are those of the A100 40GB.

    `uri`: its libvirt, as another host reaches it.
    """

    ports: Host
    form: str
    gpu: str
    real: bool
    uri: str

    @property
    def vfs(self) -> tuple[str, ...]:
        """The VFs in the order of the kernel's virtfn links."""
        entries = self.ports.sysfs.listdir(f"{PCI}/{self.gpu}")
        numbers = sorted(int(e[6:]) for e in entries if e.startswith("virtfn"))
        return tuple(self.ports.sysfs.readlink(f"{PCI}/{self.gpu}/virtfn{n}").rpartition("/")[2] for n in numbers)

    def nvml_gpu(self) -> NvmlGpu:
        """What NVML reports for the card."""
        result = self.ports.nvml.gpu(self.gpu)
        assert result is not None
        return result

    def domain(self, key: str) -> DomainInfo:
        """A domain that exists, by its name or UUID."""
        result = self.ports.hypervisor.find_domain(key)
        assert result is not None
        return result

    def type_file(self, vf: str, name: str = "current_vgpu_type") -> str:
        """A file of a vendor-specific VF."""
        return f"{PCI}/{vf}/nvidia/{name}"

    def mdev_file(self, function: str, type_id: str, name: str) -> str:
        """A file of an mdev type."""
        return f"{PCI}/{function}/mdev_supported_types/{type_id}/{name}"

    def refused(self, path: str, text: str) -> int | None:
        """The errno of a write, or None if the kernel accepts it."""
        try:
            self.ports.sysfs.write(path, text)
        except OSError as error:
            return error.errno
        return None

    @property
    def nowhere(self) -> str:
        """The address of a libvirt that is not there."""
        return "qemu+tcp://127.0.0.1:1/system" if self.real else "sim:nowhere"

    def forget_definition(self, domain: str) -> None:
        """Undefine a running domain, as `virsh undefine` does."""
        if self.real:
            subprocess.run(["virsh", "-q", "undefine", domain], check=True)
        else:
            self.ports.hypervisor.make_transient(domain)

    def pause(self, domain: str) -> None:
        """Pause a running domain, as `virsh suspend` does."""
        if self.real:
            subprocess.run(["virsh", "-q", "suspend", domain], check=True)
        else:
            self.ports.hypervisor.pause(domain)

    def kill_guest(self, domain: DomainInfo) -> None:
        """Kill a running domain's QEMU, as the kernel does when memory runs out."""
        if self.real:
            os.kill(int(Path(f"/run/libvirt/qemu/{domain.name}.pid").read_text()), signal.SIGKILL)
        else:
            self.ports.hypervisor.crash(domain.uuid)

    def remove(self, device: str) -> None:
        """Remove an mdev that nobody uses."""
        self.ports.sysfs.write_uninterruptible(f"{MDEV}/{device}/remove", "1\n", gpu=self.gpu, deadline_seconds=20)


@contextmanager
def libvirt_refuses(number: int) -> Iterator[None]:
    """Check that libvirt refuses what happens in the block, with this error number."""
    with pytest.raises(LibvirtFailed) as caught:
        yield
    assert caught.value.facts["libvirt_code"] == number


def new_uuid() -> str:
    """A new UUID for an mdev or a domain."""
    return str(uuid.uuid4())


def real_form() -> str | None:
    """The form of the lab's card, or None outside the lab."""
    return os.environ.get(VARIABLE)


def open_site(form: str, directory: Path) -> Site:
    """The lab's own host, or a simulated one in `directory`."""
    if real_form() is not None:
        from vgpuctl.host.local_host import open_local_host

        return Site(open_local_host(), form, "0000:01:00.0", real=True, uri="qemu:///system")
    from tests.hosts import open_sim_host

    vfs = {"mdev-pf": "", "sriov-vf": ", vfs: {total: 7, enabled: 0}"}.get(form, ", vfs: {total: 7, enabled: 7}")
    kernel = "6.8.0-45-generic" if form == "vendor-vf" else "5.15.0-100-generic"
    model = "Flex 170" if form == "sriov-vf" else "A100"
    text = SCENARIO.format(model=model, form=form, vfs=vfs, kernel=kernel)
    made = open_sim_host(directory, text=text)
    return Site(made.ports, form, "0000:01:00.0", real=False, uri=made.sim.migration_uri)
