# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's drivers and nvidia-vgpu-mgr complained of since the boot, and what that means.

Sources: the kernel interface layer of NVIDIA's driver (nv-pci.c: "Aborting probe for VF"; nv.c: "API mismatch"),
NVIDIA's catalogue of Xid errors, and logs of nvidia-vgpu-mgr in public bug reports (nvidia-installer 15, vgpu4nixos 4).
Xids that a program in a guest causes (13, 31, 43, 45 and the like) are no fault of the host, and are left out.
"""

from __future__ import annotations

import re

from vgpuctl.doctor.check import Check, Finding, Look, Verdict, fail, judged_by_host, not_applicable, ok, unknown, warn
from vgpuctl.doctor.gpus import shortened
from vgpuctl.model.gpu import NVIDIA
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.value import Value

MANAGER = "nvidia-vgpu-mgr"
_LONGEST = 160
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-f:.]+)\): ([0-9]{1,9})", re.IGNORECASE)
_ADDRESS = re.compile(r"\b(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?\b", re.IGNORECASE)
_READ = "journalctl -k -b -g NVRM; journalctl -b -u nvidia-vgpu-mgr"


class Message(Value):
    """A text in a line of the log: what it means, how bad that is, and what to do."""

    text: str
    means: str
    verdict: Verdict
    fix: str


class Seen(Value):
    """A message that was there: of which GPU, None when the line does not say, the last line, and how often."""

    message: Message
    gpu: str | None
    line: str
    times: int


_KERNEL = (
    Message(
        "RmInitAdapter failed",
        "the driver cannot start this GPU",
        Verdict.FAIL,
        "look at firmware settings for large BARs and at the GPU's power; then a cold start of the host",
    ),
    Message(
        "Aborting probe for VF",
        "the driver refuses this VF",
        Verdict.FAIL,
        "turn the IOMMU on in the firmware and the kernel's command line (vgpuctl doctor iommu gpu-driver)",
    ),
    Message(
        "Required FB for heterogeneous vGPU",
        "too little memory is left for vGPUs of mixed sizes: error correction and retired pages take some",
        Verdict.WARN,
        "use one size: vgpuctl set-mixed-size GPU off",
    ),
    Message(
        "API mismatch",
        "a program of another driver version asked the loaded one",
        Verdict.WARN,
        "vgpuctl doctor driver-version; reboot after an update of the driver",
    ),
    Message(
        "Could not acquire UnbindLock",
        "a program used the GPU while sriov-manage wanted it: its VFs stayed as they were, unless a later try worked",
        Verdict.WARN,
        "where VFs are missing: systemctl stop nvidia-persistenced nvidia-dcgm dcgm-exporter, then vgpuctl apply",
    ),
    Message(
        ": start failed",
        "nvidia-vgpu-mgr did not start a vGPU",
        Verdict.WARN,
        "vgpuctl doctor vgpu-services",
    ),
)
_SERVICE = (
    Message(
        "supported only on VGX capable boards",
        "the driver takes this board for one without vGPUs",
        Verdict.FAIL,
        "use a board that NVIDIA lists for vGPU; some need displaymodeselector first",
    ),
    Message(
        "Failed to initialize RM client: 0x26",
        "nvidia-vgpu-mgr and the loaded driver are of different versions, or no GPU is there",
        Verdict.WARN,
        "vgpuctl doctor driver-version; then systemctl restart nvidia-vgpud nvidia-vgpu-mgr",
    ),
    Message(
        "Failed to get VM UUID",
        "QEMU was started without -uuid, which libvirt gives it",
        Verdict.WARN,
        "start VMs with vGPUs through libvirt",
    ),
    Message("error: vmiop", "a vGPU failed", Verdict.WARN, "journalctl -b -u nvidia-vgpu-mgr"),
)
_XIDS = {
    48: ("memory errors that cannot be corrected", Verdict.WARN),
    62: ("the GPU's own processor stopped", Verdict.WARN),
    63: ("a page or row of memory was taken out of use", Verdict.WARN),
    64: ("a page or row of memory could not be taken out of use", Verdict.WARN),
    74: ("NVLink failed", Verdict.WARN),
    79: ("the GPU has fallen off the bus", Verdict.FAIL),
    92: ("many corrected memory errors", Verdict.WARN),
    94: ("memory errors that stopped one program", Verdict.WARN),
    95: ("memory errors that stopped the whole GPU", Verdict.FAIL),
    119: ("the GPU's firmware (GSP) does not answer", Verdict.FAIL),
    120: ("the GPU's firmware (GSP) failed", Verdict.FAIL),
}
_BACKTRACE = re.compile(r"\[0x[0-9a-f]+\]|frames returned by backtrace")


def _messages(look: Look, snapshot: Snapshot) -> Finding:
    if not any(g.vendor_id == NVIDIA for g in snapshot.gpus):
        return not_applicable("there is no NVIDIA GPU here")
    service = look.services.get(MANAGER)
    if look.kernel is None and service is None:
        return unknown("neither the kernel's log nor that of nvidia-vgpu-mgr can be read", fix="run it as root")
    seen = [*_in_kernel(look.kernel or (), snapshot), *_matched(service or (), _SERVICE, snapshot)]
    if not seen:
        closed = [n for n, lines in (("the kernel's log", look.kernel), (f"{MANAGER}'s log", service)) if lines is None]
        if closed:
            return unknown(f"{closed[0]} cannot be read; the other has no complaint", fix="run it as root")
        lines = f"{len(look.kernel or ())} lines of NVIDIA's modules and {len(service or ())} of {MANAGER}"
        return ok(f"{lines} since the boot, none of them a complaint")
    worst = sorted(seen, key=lambda s: s.message.verdict is not Verdict.FAIL)
    fixes = "; ".join(dict.fromkeys(s.message.fix for s in worst[:2]))
    make = fail if worst[0].message.verdict is Verdict.FAIL else warn
    return make(*shortened([_said(s) for s in worst]), fix=fixes)


def _said(seen: Seen) -> str:
    where = f"{seen.gpu}: " if seen.gpu is not None else ""
    often = f" ({seen.times} times, the last one:)" if seen.times > 1 else ""
    line = seen.line if len(seen.line) <= _LONGEST else f"{seen.line[:_LONGEST]}..."
    return f"{where}{seen.message.means}{often}: {line}"


def _in_kernel(lines: tuple[str, ...], snapshot: Snapshot) -> list[Seen]:
    found: dict[tuple[str, int], Seen] = {}
    for line in lines:
        match = _XID.search(line)
        if match is None or int(match[2]) not in _XIDS:
            continue
        number, gpu = int(match[2]), _gpu(match[1], snapshot) or match[1]
        means, verdict = _XIDS[number]
        message = Message("Xid", f"Xid {number}, {means}", verdict, f"{_READ}; NVIDIA's list of Xid errors says more")
        before = found.get((gpu, number))
        found[gpu, number] = Seen(message, gpu, line.strip(), 1 + (before.times if before is not None else 0))
    return [*found.values(), *_matched(lines, _KERNEL, snapshot)]


def _matched(lines: tuple[str, ...], messages: tuple[Message, ...], snapshot: Snapshot) -> list[Seen]:
    """Return which of these messages are there; a line counts for the first one whose text it has."""
    found: dict[tuple[str, str | None], Seen] = {}
    for line in lines:
        message = next((m for m in messages if m.text in line), None)
        if message is None or _BACKTRACE.search(line):
            continue
        named = (_gpu(text, snapshot) for text in _ADDRESS.findall(line))
        gpu = next((g for g in named if g is not None), None)
        before = found.get((message.text, gpu))
        times = 1 + (before.times if before is not None else 0)
        found[message.text, gpu] = Seen(message, gpu, line.strip(), times)
    return list(found.values())


def _gpu(text: str, snapshot: Snapshot) -> str | None:
    """Return the GPU that an address of the log means: its own or a VF's, with or without domain and function."""
    short = text.lower()
    whole = short if short.count(":") == 2 else f"0000:{short}"
    for gpu in snapshot.gpus:
        for address in (gpu.address, *(f.address for f in gpu.functions)):
            if whole in (address, address.partition(".")[0]):
                return gpu.address
    return None


CHECKS = (
    Check(
        id="driver-messages",
        title="NVIDIA's drivers have nothing to complain of",
        looks_at="NVIDIA's lines in the kernel's log since the boot, the log of `nvidia-vgpu-mgr`",
        judge=judged_by_host(_messages),
        explains=("libvirt-failed", "device-failed", "partition", "scheduler"),
        logs=True,
    ),
)
