# SPDX-License-Identifier: Apache-2.0
"""Complaints of NVIDIA's drivers and nvidia-vgpu-mgr since the boot, and their meaning.

Sources: the kernel interface layer of NVIDIA's driver (nv-pci.c: "Aborting probe for VF"; nv.c: "API mismatch"),
NVIDIA's catalogue of Xid errors, and logs of nvidia-vgpu-mgr in public bug reports (nvidia-installer 15, vgpu4nixos 4).
Xids that a program in a guest causes (13, 31, 43, 45 and the like) are no fault of the host, and are ignored.
"""

from __future__ import annotations

import re

from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    Verdict,
    fail,
    not_applicable,
    ok,
    require_snapshot,
    unknown,
    warn,
)
from vgpuctl.doctor.gpus import shorten
from vgpuctl.makers import maker_of
from vgpuctl.model.address import PCI_IN_TEXT, normalize_device
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.value import Value

VGPU_MGR = "nvidia-vgpu-mgr"
_MAX_LINE_LENGTH = 160
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-f:.]+)\): ([0-9]{1,9})", re.IGNORECASE)
_ADDRESS = re.compile(PCI_IN_TEXT, re.IGNORECASE)
_JOURNAL_COMMANDS = "journalctl -k -b -g NVRM; journalctl -b -u nvidia-vgpu-mgr"


class LogPattern(Value):
    """A text in a line of the log: its meaning, how bad that is, and what to do."""

    text: str
    meaning: str
    verdict: Verdict
    fix: str


class LogMatch(Value):
    """A message in the log: its GPU (None when the line does not name one), the last line, and the number of lines."""

    pattern: LogPattern
    gpu: str | None
    line: str
    count: int


_KERNEL_PATTERNS = (
    LogPattern(
        "RmInitAdapter failed",
        "the driver cannot start this GPU",
        Verdict.FAIL,
        "check the firmware's settings for large BARs and the GPU's power; then power the host off and on",
    ),
    LogPattern(
        "Aborting probe for VF",
        "the driver refuses this VF",
        Verdict.FAIL,
        "turn the IOMMU on in the firmware and the kernel's command line (vgpuctl doctor iommu gpu-driver)",
    ),
    LogPattern(
        "Required FB for heterogeneous vGPU",
        "too little memory is left for vGPUs of mixed sizes: ECC and retired pages take some",
        Verdict.WARN,
        "use one size on each GPU: vgpuctl set-mixed-size --all off",
    ),
    LogPattern(
        "API mismatch",
        "a program of another driver version called the loaded driver",
        Verdict.WARN,
        "vgpuctl doctor driver-version; reboot after an update of the driver",
    ),
    LogPattern(
        "Could not acquire UnbindLock",
        "a program used the GPU while sriov-manage needed it: its VFs did not change, unless a later try worked",
        Verdict.WARN,
        "if VFs are missing: systemctl stop nvidia-persistenced nvidia-dcgm dcgm-exporter, then vgpuctl restore-host",
    ),
    LogPattern(
        ": start failed",
        "nvidia-vgpu-mgr did not start a vGPU",
        Verdict.WARN,
        "vgpuctl doctor vgpu-services",
    ),
)
_SERVICE_PATTERNS = (
    LogPattern(
        "supported only on VGX capable boards",
        "the driver treats this board as one without vGPU support",
        Verdict.FAIL,
        "use a board that NVIDIA lists for vGPU; some need displaymodeselector first",
    ),
    LogPattern(
        "Failed to initialize RM client: 0x26",
        "nvidia-vgpu-mgr and the loaded driver have different versions, or there is no GPU",
        Verdict.WARN,
        "vgpuctl doctor driver-version; then systemctl restart nvidia-vgpud nvidia-vgpu-mgr",
    ),
    LogPattern(
        "Failed to get VM UUID",
        "QEMU was started without -uuid, which libvirt always sets",
        Verdict.WARN,
        "start VMs with vGPUs through libvirt",
    ),
    LogPattern("error: vmiop", "a vGPU failed", Verdict.WARN, "journalctl -b -u nvidia-vgpu-mgr"),
)
_XIDS = {
    48: ("memory errors that cannot be corrected", Verdict.WARN),
    62: ("the GPU's own processor stopped", Verdict.WARN),
    63: ("a page or row of memory was retired", Verdict.WARN),
    64: ("a page or row of memory could not be retired", Verdict.WARN),
    74: ("NVLink failed", Verdict.WARN),
    79: ("the GPU has fallen off the bus", Verdict.FAIL),
    92: ("many corrected memory errors", Verdict.WARN),
    94: ("memory errors that stopped one program", Verdict.WARN),
    95: ("memory errors that stopped the whole GPU", Verdict.FAIL),
    119: ("the GPU's firmware (GSP) does not answer", Verdict.FAIL),
    120: ("the GPU's firmware (GSP) failed", Verdict.FAIL),
}
_BACKTRACE = re.compile(r"\[0x[0-9a-f]+\]|frames returned by backtrace")


def _check_messages(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not any(maker_of(g).has_nvml for g in snapshot.gpus):
        return not_applicable("there is no NVIDIA GPU here")
    service_log = context.service_logs.get(VGPU_MGR)
    if context.kernel_log is None and service_log is None:
        return unknown("neither the kernel's log nor that of nvidia-vgpu-mgr can be read", fix="run it as root")
    matches = [
        *_match_kernel_log(context.kernel_log or (), snapshot),
        *_match_patterns(service_log or (), _SERVICE_PATTERNS, snapshot),
    ]
    if not matches:
        unreadable = [
            name
            for name, lines in (("the kernel's log", context.kernel_log), (f"{VGPU_MGR}'s log", service_log))
            if lines is None
        ]
        if unreadable:
            return unknown(f"{unreadable[0]} cannot be read; the other shows no errors", fix="run it as root")
        lines = f"{len(context.kernel_log or ())} lines of NVIDIA's modules and {len(service_log or ())} of {VGPU_MGR}"
        return ok(f"{lines} since the boot, none of them an error")
    worst_first = sorted(matches, key=lambda match: match.pattern.verdict is not Verdict.FAIL)
    fixes = "; ".join(dict.fromkeys(match.pattern.fix for match in worst_first[:2]))
    make_finding = fail if worst_first[0].pattern.verdict is Verdict.FAIL else warn
    return make_finding(*shorten([_describe_match(match) for match in worst_first]), fix=fixes)


def _describe_match(match: LogMatch) -> str:
    where = f"{match.gpu}: " if match.gpu is not None else ""
    repeats = f" ({match.count} times, the last one:)" if match.count > 1 else ""
    line = match.line if len(match.line) <= _MAX_LINE_LENGTH else f"{match.line[:_MAX_LINE_LENGTH]}..."
    return f"{where}{match.pattern.meaning}{repeats}: {line}"


def _match_kernel_log(lines: tuple[str, ...], snapshot: Snapshot) -> list[LogMatch]:
    matches: dict[tuple[str, int], LogMatch] = {}
    for line in lines:
        match = _XID.search(line)
        if match is None or int(match[2]) not in _XIDS:
            continue
        number, gpu = int(match[2]), _find_gpu(match[1], snapshot) or match[1]
        meaning, verdict = _XIDS[number]
        pattern = LogPattern(
            "Xid", f"Xid {number}, {meaning}", verdict, f"{_JOURNAL_COMMANDS}; see NVIDIA's list of Xid errors"
        )
        previous = matches.get((gpu, number))
        matches[gpu, number] = LogMatch(pattern, gpu, line.strip(), 1 + (previous.count if previous is not None else 0))
    return [*matches.values(), *_match_patterns(lines, _KERNEL_PATTERNS, snapshot)]


def _match_patterns(lines: tuple[str, ...], patterns: tuple[LogPattern, ...], snapshot: Snapshot) -> list[LogMatch]:
    """Return the patterns that occur in the log; a line counts for the first one whose text it has."""
    matches: dict[tuple[str, str | None], LogMatch] = {}
    for line in lines:
        pattern = next((candidate for candidate in patterns if candidate.text in line), None)
        if pattern is None or _BACKTRACE.search(line):
            continue
        gpus_in_line = (_find_gpu(text, snapshot) for text in _ADDRESS.findall(line))
        gpu = next((g for g in gpus_in_line if g is not None), None)
        previous = matches.get((pattern.text, gpu))
        count = 1 + (previous.count if previous is not None else 0)
        matches[pattern.text, gpu] = LogMatch(pattern, gpu, line.strip(), count)
    return list(matches.values())


def _find_gpu(text: str, snapshot: Snapshot) -> str | None:
    """Return the GPU that an address in the log belongs to: its own or a VF's, with or without domain and function."""
    full_address = normalize_device(text)
    for gpu in snapshot.gpus if full_address is not None else ():
        for address in (gpu.address, *(f.address for f in gpu.functions)):
            if full_address == (address if "." in text else normalize_device(address.partition(".")[0])):
                return gpu.address
    return None


CHECKS = (
    Check(
        id="driver-messages",
        title="errors that NVIDIA's drivers logged",
        looks_at="NVIDIA's lines in the kernel's log since the boot, the log of `nvidia-vgpu-mgr`",
        run=require_snapshot(_check_messages),
        explains=("libvirt-failed", "device-failed", "partition", "scheduler"),
        needs_logs=True,
    ),
)
