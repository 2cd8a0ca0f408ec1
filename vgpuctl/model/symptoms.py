# SPDX-License-Identifier: Apache-2.0
"""What libvirt and QEMU say when a VM does not start, why, and what helps: for errors and for the symptom index.

docs/symptoms.md has each row as `Symptom.row` returns it; a test compares them. Sources: libvirt's and QEMU's sources,
and public bug reports.
"""

from __future__ import annotations

import re
import shlex

from vgpuctl.value import Value

_LINK = re.compile(r" \(\[[^\]]*\]\([^)]*\)\)")
_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")


class Symptom(Value):
    """One row. `words`: a regular expression that finds it in an error; its groups fill the placeholders of `remedy`.

    `seen`, `cause` and `remedy` are the cells of the index, in Markdown. `examples`: errors that have it.
    """

    words: str
    seen: str
    cause: str
    remedy: str
    examples: tuple[str, ...]

    @property
    def row(self) -> str:
        """The row of the symptom index."""
        return f"| {self.seen} | {self.cause} | {_PLACEHOLDER.sub(lambda name: name[1].upper(), self.remedy)} |"

    def hint(self, match: re.Match[str]) -> str:
        """Return the remedy as plain text, for an error in which `words` matched."""
        groups = match.groupdict()
        text = _PLACEHOLDER.sub(lambda name: shlex.quote(groups.get(name[1]) or name[1].upper()), self.remedy)
        return _LINK.sub("", text).replace("`", "")


def find_hint(text: str) -> str | None:
    """Return the remedy of the first symptom that an error's text has, None if it has none."""
    for symptom in SYMPTOMS:
        match = re.search(symptom.words, text, re.IGNORECASE)
        if match is not None:
            return symptom.hint(match)
    return None


SYMPTOMS = (
    Symptom(
        r"device not found: mediated device|mediated device '?[0-9a-f-]{36}'? not found"
        r"|Device [0-9a-f:.]+ not found|PCI device [0-9a-f:.]+ not found",
        "vGPUs gone after reboot; `device not found`",
        "no driver keeps vGPUs or VFs over a reboot",
        "`vgpuctl install-host` once; now: `vgpuctl restore-host`",
        (
            "device not found: mediated device '83b8f4f2-509f-382f-3c1e-e6bfe0fa1001' not found",
            "Device 0000:3b:00.4 not found: could not access /sys/bus/pci/devices/0000:3b:00.4/config: No such file",
        ),
    ),
    Symptom(
        r"error getting device from group \d+: (Input/output error|Connection timed out|No such device)",
        "`internal error: … vfio …: error getting device from group … Input/output error`",
        "`nvidia-vgpu-mgr` does not run, or refused; the real reason is in its log",
        "`vgpuctl doctor vgpu-services driver-messages`",
        (
            "internal error: QEMU unexpectedly closed the monitor (vm='web'): vfio 0000:3b:00.4: error getting device "
            "from group 20: Input/output error",
        ),
    ),
    Symptom(
        r"Verify all devices in group \d+ are bound|group \d+ is not viable",
        "`Verify all devices in group N are bound to vfio-pci`; `group N is not viable`",
        "passthrough: another device of the IOMMU group is in use by the host",
        "`vgpuctl doctor iommu-groups`; another slot, or ACS in the firmware",
        (
            "vfio 0000:3b:00.0: group 20 is not viable",
            "Please ensure all devices within the iommu_group are bound to their vfio bus driver. Verify all devices "
            "in group 20 are bound to vfio-<bus> or pci-stub and not already in use",
        ),
    ),
    Symptom(
        r"Unmanaged PCI device \S+ must be manually detached",
        "`Unmanaged PCI device … must be manually detached`",
        "libvirt before 10.0 does not know vendor-specific VFIO",
        "newer libvirt; `vgpuctl doctor libvirt`",
        ("internal error: Unmanaged PCI device 0000:3b:00.4 must be manually detached from the host",),
    ),
    Symptom(
        r"VFIO_MAP_DMA failed: Invalid argument",
        "`VFIO_MAP_DMA failed: Invalid argument`",
        "the IOMMU has fewer address bits than the CPU",
        "`--pci-window none` ([big GPUs](reference/real-hosts.md#a-big-gpu-as-a-whole))",
        ("internal error: vfio 0000:3b:00.0: VFIO_MAP_DMA failed: Invalid argument",),
    ),
    Symptom(
        r"egl: (?:eglInitialize|eglGetDisplay) failed|render node init failed|no drm render node available",
        "`egl: eglInitialize failed`; `egl: render node init failed`",
        "QEMU cannot draw on the GPU: Mesa has no driver for it, or NVIDIA's driver needs more device nodes",
        "`vgpuctl list-gpus --columns address,driver,render-node`; another GPU by `set-vm --gpu` "
        "([drawing](howto/virtio-gpu.md#when-it-does-not-start))",
        (
            "internal error: process exited while connecting to monitor: qemu-system-x86_64: egl: eglInitialize failed",
            "qemu-system-x86_64: egl: render node init failed",
        ),
    ),
    Symptom(
        r"unable to map backing store for guest RAM|hugepages?.*Cannot allocate memory",
        "`unable to map backing store for guest RAM`",
        "too few huge pages on the NUMA node",
        "`grep Huge /sys/devices/system/node/node*/meminfo`",
        (
            "internal error: qemu unexpectedly closed the monitor: unable to map backing store for guest RAM: Cannot "
            "allocate memory",
        ),
    ),
    Symptom(
        r"cannot allocate memory|RLIMIT_MEMLOCK|cannot limit locked memory|VFIO_MAP_DMA failed: -12",
        "`cannot allocate memory`; `RLIMIT_MEMLOCK`; `cannot limit locked memory`; `VFIO_MAP_DMA failed: -12`",
        "VMs with devices lock all their memory",
        "less guest memory, or a higher limit; `vgpuctl doctor locked-memory`",
        (
            "internal error: qemu unexpectedly closed the monitor: vfio 0000:3b:00.4: VFIO_MAP_DMA failed: Cannot "
            "allocate memory",
            "internal error: Process exited prior to exec: cannot limit locked memory of process 111 to 4294967296: "
            "Operation not permitted",
        ),
    ),
    Symptom(
        r"/dev/vfio\S*: Permission denied|apparmor=.?DENIED",
        '`Permission denied` on `/dev/vfio/…`; `apparmor="DENIED"`',
        "AppArmor's profile for VMs is missing or changed",
        "`vgpuctl doctor apparmor`; `journalctl -k -g DENIED`",
        ("cannot open /dev/vfio/20: Permission denied",),
    ),
    Symptom(
        r"(?:Could not open|Cannot access storage file|Failed to open file) '(?P<path>/[^']+)'.*Permission denied",
        "`Permission denied` on the image",
        "QEMU's user cannot enter a directory",
        "`namei -l {path}` shows which; move the image to a pool, or `chmod o+x` the directory",
        (
            "internal error: process exited while connecting to monitor: Could not open '/data/pool/web.qcow2': "
            "Permission denied",
            "Cannot access storage file '/root/a.qcow2' (as uid:64055, gid:109): Permission denied",
        ),
    ),
    Symptom(
        r"Failed to get \"?(?:shared )?\"?write\"? lock|Is another process using the image",
        '`Failed to get "write" lock`',
        "the disk is open elsewhere",
        "`vgpuctl list-images`; `lsof`",
        ('internal error: process exited: Failed to get "write" lock. Is another process using the image [/a.qcow2]?',),
    ),
    Symptom(
        r"network '(?P<name>[^']+)' is not active",
        "`network 'default' is not active`",
        "the libvirt network is off",
        "`virsh net-start {name}; virsh net-autostart {name}`",
        ("Requested operation is not valid: network 'default' is not active",),
    ),
    Symptom(
        r"(?:Cannot get interface MTU on|Unable to add bridge|Cannot find bridge) '?(?P<name>[^' ]+)'?",
        "`Cannot get interface MTU on 'br0'`",
        "no such bridge",
        "`ip link show {name}`",
        ("Cannot get interface MTU on 'br0': No such device",),
    ),
    Symptom(
        r"Unable to find (?:any|'efi') firmware|unable to find any master var store",
        "`Unable to find 'efi' firmware`",
        "no UEFI firmware",
        "`vgpuctl doctor uefi`; install `ovmf` or `edk2-ovmf`",
        ("operation failed: Unable to find 'efi' firmware that is compatible with the current configuration",),
    ),
    Symptom(
        r"Unable to find 'swtpm\S*' binary|swtpm\S*: (?:command not found|No such file)",
        "`Unable to find 'swtpm_setup' binary`",
        "no TPM emulator",
        "install `swtpm`, `swtpm-tools`",
        ("unsupported configuration: Unable to find 'swtpm_setup' binary in $PATH",),
    ),
    Symptom(
        r"device \S+ is in use by driver \S+, domain (?P<domain>\S+)",
        "`device … is in use by driver QEMU, domain …`",
        "another running VM has it",
        "`vgpuctl show-vm {domain}`; stop that VM, or use another device",
        (
            "Requested operation is not valid: PCI device 0000:3b:00.4 is in use by driver QEMU, domain other",
            "Requested operation is not valid: mediated device /sys/x is in use by driver QEMU, domain a",
        ),
    ),
    Symptom(
        r"no iommu_group found|host doesn't support passthrough of host PCI devices|VFIO is not available",
        "`host doesn't support passthrough`; `no iommu_group found`",
        "no IOMMU, or no vfio",
        "`vgpuctl doctor iommu vfio`",
        ("unsupported configuration: host doesn't support passthrough of host PCI devices",),
    ),
    Symptom(
        r"could not find capabilities for .*domaintype=kvm|domain type kvm|Could not access KVM kernel module",
        "`… domaintype=kvm`",
        "no usable /dev/kvm",
        "`vgpuctl doctor kvm`",
        ("invalid argument: could not find capabilities for arch=x86_64 domaintype=kvm",),
    ),
)
"""The first that matches counts: the more specific are before the general."""
