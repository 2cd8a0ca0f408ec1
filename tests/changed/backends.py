# SPDX-License-Identifier: Apache-2.0
"""One small host for each backend, with a VM, and how it looks after its hardware or its kernel changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.changed.site import Site

FIRST, SECOND, MOVED = "0000:3b:00.0", "0000:5e:00.0", "0000:41:00.0"
HEAD = """version: 1
kernel: "{kernel}"
storage: {{pools: [{{name: default}}]}}
images: [{{path: /base.qcow2, size_gib: 20, firmware: both}}]
gpus:
"""
HOST_FILE = "version: 1\nboot: {deadline_seconds: 20}\n"
VENDOR_VF, MDEV_VF = "6.8.0-45-generic", "5.14.0-427.el9_4.x86_64"


@dataclass(frozen=True)
class Kind:
    """A backend's host: two GPUs of one model. The VM `web` is on the first.

    `profile`, `other`: two profiles of it, empty for whole devices. `renamed`: the first profile's type as a new driver
    calls it. `fewer`: the GPU without VFs. `replaced`: another model's entry, without address. `changed`: the entry
    after a new kernel or driver, which is `kernel_after`. `setup`: commands before the VM is created.
    """

    name: str
    gpu: str
    mode: str
    profile: str = ""
    other: str = ""
    kernel: str = VENDOR_VF
    kernel_after: str = VENDOR_VF
    fewer: str = ""
    replaced: str = "model: A10, vfs: {total: 3, enabled: 3}, profiles: [A10-8Q, A10-12Q]"
    changed: str = ""
    renamed: str = ""
    renumbered: str = ""
    setup: tuple[str, ...] = ()
    neighbour: str = "vf"

    def text(self, *gpus: tuple[str, str], kernel: str = "") -> str:
        """Return a scenario with these GPUs: address and entry."""
        lines = (f'  - {{address: "{address}", {entry}}}\n' for address, entry in gpus)
        return HEAD.format(kernel=kernel or self.kernel) + ("".join(lines) or "  []\n")

    @property
    def has_vfs(self) -> bool:
        """Whether the VM's device is or is on a VF."""
        return bool(self.fewer)

    def request(self, name: str) -> str:
        """Return the command that creates a VM on this host."""
        what = f"--profile {self.profile}" if self.profile else f"--mode {self.mode} --gpus 1"
        return f"create-vm {name} {what} --image /base.qcow2"


def _l40s(*profiles: str) -> str:
    return f"model: L40S, vfs: {{total: 3, enabled: 3}}, profiles: [{', '.join(profiles)}]"


KINDS = (
    Kind(
        "mdev-pf",
        "model: T4, profiles: [T4-4Q, T4-8Q]",
        "vgpu",
        "T4-4Q",
        "T4-8Q",
        changed="model: T4, profiles: []",
        renamed="model: T4, profiles: [{name: NVIDIA T4-4X, id: 222, framebuffer_mib: 4096, max: 4}]",
        renumbered="model: T4, profiles: [{name: NVIDIA T4-4Q, id: 901, framebuffer_mib: 4096, max: 4}, "
        "{name: NVIDIA T4-8Q, id: 902, framebuffer_mib: 8192, max: 2}]",
        neighbour="mdev",
    ),
    Kind(
        "mdev-vf",
        "model: A16, vfs: {total: 3, enabled: 3}, profiles: [A16-4Q, A16-8Q]",
        "vgpu",
        "A16-4Q",
        "A16-8Q",
        kernel=MDEV_VF,
        kernel_after=VENDOR_VF,
        changed="model: A16, vfs: {total: 3, enabled: 3}, profiles: [A16-4Q, A16-8Q]",
        fewer="model: A16, vfs: {total: 3, enabled: 0}, profiles: [A16-4Q, A16-8Q]",
        renamed="model: A16, vfs: {total: 3, enabled: 3}, profiles: [{name: NVIDIA A16-4X, id: 710, "
        "framebuffer_mib: 4096, max: 4}]",
        renumbered="model: A16, vfs: {total: 3, enabled: 3}, profiles: [{name: NVIDIA A16-4Q, id: 901, "
        "framebuffer_mib: 4096, max: 4}, {name: NVIDIA A16-8Q, id: 902, framebuffer_mib: 8192, max: 2}]",
    ),
    Kind(
        "vendor-vf",
        _l40s("L40S-8Q", "L40S-12Q"),
        "vgpu",
        "L40S-8Q",
        "L40S-12Q",
        kernel_after=MDEV_VF,
        changed=_l40s("L40S-8Q", "L40S-12Q"),
        fewer="model: L40S, vfs: {total: 3, enabled: 0}, profiles: [L40S-8Q, L40S-12Q]",
        renamed=_l40s("{name: NVIDIA L40S-8X, id: 1150, framebuffer_mib: 8192, max: 6}"),
        renumbered=_l40s(
            "{name: NVIDIA L40S-8Q, id: 901, framebuffer_mib: 8192, max: 6}",
            "{name: NVIDIA L40S-12Q, id: 902, framebuffer_mib: 12288, max: 4}",
        ),
    ),
    Kind(
        "sriov-vf",
        "model: Flex 170, vfs: {total: 3, enabled: 3}",
        "sriov",
        changed="model: Flex 170, backend: passthrough, driver: i915",
        fewer="model: Flex 170, vfs: {total: 3, enabled: 0}",
    ),
    Kind(
        "passthrough",
        "model: RTX 4090",
        "passthrough",
        changed="model: RTX 4090, driver: nouveau, backend: passthrough",
        neighbour="companion",
    ),
    Kind(
        "mig",
        "model: H100, vfs: {total: 4, enabled: 4}, profiles: [H100-3-40C, H100-1-10C, H100-10C]",
        "vgpu",
        "H100-3-40C",
        "H100-1-10C",
        kernel_after=MDEV_VF,
        changed="model: H100, vfs: {total: 4, enabled: 4}, profiles: [H100-3-40C, H100-1-10C, H100-10C]",
        fewer="model: H100, vfs: {total: 4, enabled: 0}, profiles: [H100-3-40C, H100-1-10C, H100-10C]",
        renamed="model: H100, vfs: {total: 4, enabled: 4}, profiles: [{name: NVIDIA H100-3-40X, id: 1134, "
        "framebuffer_mib: 40960, max: 2, gi_profile: 9}]",
        renumbered="model: H100, vfs: {total: 4, enabled: 4}, profiles: [{name: NVIDIA H100-3-40C, id: 901, "
        "framebuffer_mib: 40960, max: 2, gi_profile: 9}]",
        setup=(f"set-mig {FIRST} 3g.40gb 1g.10gb:2", f"set-mig {SECOND} 3g.40gb 1g.10gb:2"),
    ),
    Kind(
        "mixed",
        "model: RTX PRO 6000, vfs: {total: 4, enabled: 4}, profiles: [DC-24Q, DC-48Q]",
        "vgpu",
        "DC-24Q",
        "DC-48Q",
        kernel_after=MDEV_VF,
        changed="model: RTX PRO 6000, vfs: {total: 4, enabled: 4}, profiles: [DC-24Q, DC-48Q]",
        fewer="model: RTX PRO 6000, vfs: {total: 4, enabled: 0}, profiles: [DC-24Q, DC-48Q]",
        renamed="model: RTX PRO 6000, vfs: {total: 4, enabled: 4}, profiles: [{name: NVIDIA RTX Pro 6000 Blackwell "
        "DC-24X, id: 1500, framebuffer_mib: 24576, max: 4}]",
        renumbered="model: RTX PRO 6000, vfs: {total: 4, enabled: 4}, profiles: [{name: NVIDIA RTX Pro 6000 Blackwell "
        "DC-24Q, id: 901, framebuffer_mib: 24576, max: 4}]",
        setup=(f"set-mixed-size {FIRST} on", f"set-mixed-size {SECOND} on"),
    ),
)
VMS = ("off", "on", "off, --reserve running")
"""How the VM is before the change."""


def prepare(kind: Kind, vm: str, directory: Path) -> Site:
    """Create a host of this kind, with a VM that is `vm`. vgpuctl is installed on it."""
    directory.mkdir(parents=True)
    site = Site(directory)
    Path(site.scenario).write_text(kind.text((FIRST, kind.gpu), (SECOND, kind.gpu)))
    with site.opened() as host:
        host.host_file.write_text(HOST_FILE)
    for line in ("install-host", *kind.setup):
        site.must(line)
    running = " --reserve running" if "running" in vm else ""
    site.must(f"{kind.request('web')}{running}")
    (vgpu,) = site.must("show-vm web").data["vgpus"]
    assert vgpu["gpu"] == FIRST, vgpu
    if vm != "on":
        site.must("stop-vm web --force")
    return site
