# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver: services, versions, users, firmware and ECC; what the drivers logged.

Logs since the boot: sources are the kernel interface layer of NVIDIA's driver (nv-pci.c: "Aborting probe for VF"; nv.c:
"API mismatch"), NVIDIA's catalogue of Xid errors, and logs of nvidia-vgpu-mgr in public bug reports (nvidia-installer
15, vgpu4nixos 4). Xids that a program in a guest causes (13, 31, 43, 45 and the like) are no fault of the host, and are
ignored.

Size: a third of it is tables: the lines of the driver's logs, and what each means.
"""

from __future__ import annotations

import re

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import (
    NVIDIA_SERVICES,
    SLICE_DIRECTORIES,
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    Verdict,
    fail,
    not_applicable,
    ok,
    on_or_off,
    require_snapshot,
    shorten,
    unknown,
    warn,
)
from vgpuctl.doctor.own_files import UNIT_DIRECTORIES
from vgpuctl.makers import maker_of, uses_nvml
from vgpuctl.model.gpu import MODES_WITHOUT_VFS, Gpu, GpuMode
from vgpuctl.model.names import PCI_IN_TEXT, normalize_device
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.scheduler.modprobe_files import DIRECTORIES, DRIVER_PARAMS_PATH, ModprobeFile
from vgpuctl.scheduler.registry_dword import MODULE_VERSION, PROC_VERSION, parse_driver_version
from vgpuctl.value import Value

VGPUD, VGPU_MGR = NVIDIA_SERVICES
LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
FIRMWARE_OPTION = "NVreg_EnableGpuFirmware"
NO_NVIDIA_GPU = "no GPU here has NVIDIA's driver"
_END_MARKERS = ("Failed with result", "Deactivated successfully", "Succeeded.", "Started ", "Finished ")
_LIBRARY_NAME = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")
_MODPROBE_OPTION = re.compile(rf"^\s*options\s+nvidia\s.*\b{FIRMWARE_OPTION}=(\w+)", re.MULTILINE)
_LOADED_OPTION = re.compile(r"^EnableGpuFirmware:\s*([0-9]{1,18})", re.MULTILINE)
_MODE_MASK, _MODE_DEFAULT = 0xF, 2
"""nv-reg.h: NV_REG_ENABLE_GPU_FIRMWARE_MODE_MASK and _MODE_DEFAULT; the driver's default is 0x12."""


def nvidia_gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    """Return the GPUs with NVIDIA's driver."""
    return tuple(gpu for gpu in snapshot.gpus if uses_nvml(gpu))


def _check_services(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not any(uses_nvml(g) and backend_for(g.backend).creates_devices for g in snapshot.gpus):
        return not_applicable("no GPU here has vGPUs of NVIDIA's driver")
    fix = f"systemctl restart {VGPUD}, then {VGPU_MGR}; journalctl -b -u {VGPUD} -u {VGPU_MGR} shows why"
    service_events = [
        line for line in context.service_logs.get(VGPUD) or () if any(word in line for word in _END_MARKERS)
    ]
    if service_events and _END_MARKERS[0] in service_events[-1]:
        return fail(service_events[-1].strip(), f"without {VGPUD} the GPUs have no vGPU types", fix=fix)
    files = [f"{directory}/{VGPU_MGR}.service/cgroup.procs" for directory in SLICE_DIRECTORIES]
    pids = [pid for path in files for pid in (context.file(path).text or "").split()]
    if pids:
        return ok(
            f"{VGPU_MGR} runs (pid {pids[0]})",
            service_events[-1].strip() if service_events else f"no line of {VGPUD} in the journal",
        )
    problems = [problem for path in files if (problem := context.file(path).problem)]
    if problems or not any(context.folder(directory).names for directory in SLICE_DIRECTORIES):
        return unknown(*(problems or [f"systemd's services are not visible in {SLICE_DIRECTORIES[0]}"]))
    unit = next(
        (f"{directory}/{VGPU_MGR}.service" for directory in UNIT_DIRECTORIES if _has_unit(context, directory)), None
    )
    if unit is None:
        return unknown(
            f"no {VGPU_MGR}.service in {', '.join(UNIT_DIRECTORIES)}: it is not known what starts vGPUs here"
        )
    return fail(f"{unit} exists but does not run: no VM with a vGPU can start", fix=fix)


def _has_unit(context: CheckContext, folder: str) -> bool:
    return f"{VGPU_MGR}.service" in (context.folder(folder).names or ())


def _check_version(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not nvidia_gpus(snapshot):
        return not_applicable(NO_NVIDIA_GPU)
    version_by_source = {
        PROC_VERSION: parse_driver_version(None, context.file(PROC_VERSION).text),
        MODULE_VERSION: parse_driver_version(context.file(MODULE_VERSION).text, None),
        "NVML": snapshot.nvml.driver_version,
    }
    known_versions = {source: version for source, version in version_by_source.items() if version is not None}
    if not known_versions:
        return unknown(
            context.file(PROC_VERSION).problem
            or f"neither {PROC_VERSION} nor {MODULE_VERSION} nor NVML reports a version"
        )
    libraries = {
        f"{directory}/{name}": match[1]
        for directory in LIBRARY_DIRECTORIES
        for name in context.folder(directory).names or ()
        if (match := _LIBRARY_NAME.fullmatch(name)) is not None
    }
    lines = [f"{source}: {version}" for source, version in {**known_versions, **libraries}.items()]
    loaded = set(known_versions.values())
    if len(loaded) > 1 or (libraries and loaded.isdisjoint(libraries.values())):
        return fail(
            *lines,
            fix="the loaded driver and its libraries must have the same version: reboot after an update, or install the"
            " loaded version",
        )
    return ok(*lines)


def _check_holders(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = nvidia_gpus(snapshot)
    if not gpus:
        return not_applicable(NO_NVIDIA_GPU)
    if context.holders is None:
        return unknown(context.holders_problem, fix="run it as root")
    users = [
        f"{holder.command} (pid {holder.pid})"
        for holder in context.holders
        if not any(command in holder.command for command in NVIDIA_SERVICES)
    ]
    if not users:
        return ok("only NVIDIA's own services have the driver open")
    pending = [f"{g.address}: {why}" for g in gpus if (why := _pending_change(g)) is not None]
    if not pending:
        return ok(*shorten([f"{user} has the driver open" for user in users]), "no GPU waits for its release")
    return warn(
        *shorten(pending),
        *shorten([f"{user} has the driver open" for user in users]),
        fix="systemctl stop nvidia-persistenced nvidia-dcgm dcgm-exporter (those that run); then the command that"
        " failed, or vgpuctl restore-host",
    )


def _pending_change(gpu: Gpu) -> str | None:
    """Return the change that has to wait while a program has a GPU open, None when nothing is pending."""
    if gpu.mig is not None and gpu.mig.enabled is not gpu.mig.pending_enabled:
        return f"MIG waits for a reset to turn {'on' if gpu.mig.pending_enabled else 'off'}"
    if gpu.mig is not None and gpu.desired_mig is not None and gpu.desired_mig.is_requested is not gpu.mig.enabled:
        return f"host.yaml sets MIG {'on' if gpu.desired_mig.is_requested else 'off'}, which needs its VFs off first"
    if gpu.vfs_total and not gpu.vfs_enabled and gpu.backend is None and gpu.desired_mode not in MODES_WITHOUT_VFS:
        return f"its {gpu.vfs_total} VFs are off"
    if gpu.vfs_enabled and gpu.desired_mode is GpuMode.PASSTHROUGH:
        return f"host.yaml sets passthrough, but {gpu.vfs_enabled} VFs are on"
    return None


def _check_firmware(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not nvidia_gpus(snapshot):
        return not_applicable(NO_NVIDIA_GPU)
    files, problems = read_modprobe_files(context)
    forced = [
        f"{file.path}: {FIRMWARE_OPTION}={match[1]}" for file in files for match in _MODPROBE_OPTION.finditer(file.text)
    ]
    loaded = _LOADED_OPTION.search(context.file(DRIVER_PARAMS_PATH).text or "")
    if loaded is not None and int(loaded[1]) & _MODE_MASK != _MODE_DEFAULT:
        forced.append(f"{DRIVER_PARAMS_PATH}: the driver was loaded with EnableGpuFirmware {loaded[1]}")
    if forced:
        return warn(
            *shorten(forced),
            fix=f"remove {FIRMWARE_OPTION} from modprobe's files, rebuild the initramfs and reboot: the driver "
            "knows which"
            " GPUs need their firmware (GSP)",
        )
    return unknown(*problems) if problems else ok(f"{FIRMWARE_OPTION} is not set: the driver decides")


def read_modprobe_files(context: CheckContext) -> tuple[tuple[ModprobeFile, ...], list[str]]:
    """Return modprobe's files, for equal names the one in the first directory, and why some cannot be read.

    The check has to declare the directories as `configs`.
    """
    files: dict[str, ModprobeFile] = {}
    problems: list[str] = []
    for folder in DIRECTORIES:
        listing = context.folder(folder)
        problems += [listing.problem] if listing.problem else []
        for name in listing.names or ():
            if not name.endswith(".conf") or name in files:
                continue
            content = context.file(f"{folder}/{name}")
            problems += [content.problem] if content.problem else []
            files[name] = ModprobeFile(f"{folder}/{name}", content.text or "")
    return tuple(files.values()), problems


def _check_ecc(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = nvidia_gpus(snapshot)
    if not gpus:
        return not_applicable(NO_NVIDIA_GPU)
    ecc_states = [(gpu, context.ecc[gpu.address]) for gpu in gpus if gpu.address in context.ecc]
    if not ecc_states:
        return unknown("NVML does not report error correction (ECC)")
    waiting = [
        f"{gpu.address} ({gpu.model}): ECC is {on_or_off(ecc.enabled)}, and "
        f"{on_or_off(ecc.pending_enabled)} after its next reset"
        for gpu, ecc in ecc_states
        if ecc.enabled is not ecc.pending_enabled
    ]
    if waiting:
        return warn(
            *shorten(waiting),
            "this changes the memory available to vGPUs",
            fix="reboot the host, or undo the change: nvidia-smi -i ADDRESS -e 0 (off) or 1 (on)",
        )
    return ok(*shorten([f"{gpu.address}: ECC is {on_or_off(ecc.enabled)}" for gpu, ecc in ecc_states]))


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
        id="driver-version",
        title="the versions of NVIDIA's driver and libraries",
        looks_at=f"`{PROC_VERSION}`, `{MODULE_VERSION}`, NVML, `libnvidia-ml.so.VERSION` in "
        f"`{'`, `'.join(LIBRARY_DIRECTORIES)}`",
        run=require_snapshot(_check_version),
        paths=PathsToRead(files=(PROC_VERSION, MODULE_VERSION), folders=LIBRARY_DIRECTORIES),
        explains=("nvml", "nvml-failed", "driver", "partition", "scheduler"),
    ),
    Check(
        id="vgpu-services",
        title="NVIDIA's services for vGPUs",
        looks_at=f"`{VGPU_MGR}.service/cgroup.procs` in `{'`, `'.join(SLICE_DIRECTORIES)}`, the log of `{VGPUD}`",
        run=require_snapshot(_check_services),
        paths=PathsToRead(
            files=tuple(f"{at}/{VGPU_MGR}.service/cgroup.procs" for at in SLICE_DIRECTORIES),
            folders=(*SLICE_DIRECTORIES, *UNIT_DIRECTORIES),
        ),
        explains=("libvirt-failed", "device-failed", "no-capacity"),
        needs_logs=True,
    ),
    Check(
        id="driver-holders",
        title="programs that block a pending change of NVIDIA's driver",
        looks_at="who has `/dev/nvidia*` open, MIG and VFs of each GPU",
        run=require_snapshot(_check_holders),
        explains=("busy",),
        needs_holders=True,
    ),
    Check(
        id="gpu-firmware",
        title="the option for the GPUs' firmware (GSP)",
        looks_at=f"`{DRIVER_PARAMS_PATH}`, `{FIRMWARE_OPTION}` in `{'/*.conf`, `'.join(DIRECTORIES)}/*.conf`",
        run=require_snapshot(_check_firmware),
        paths=PathsToRead(files=(DRIVER_PARAMS_PATH,), configs=DIRECTORIES),
        explains=("device-failed",),
    ),
    Check(
        id="ecc",
        title="changes of ECC that wait for a reset",
        looks_at="NVML",
        run=require_snapshot(_check_ecc),
        needs_ecc=True,
    ),
    Check(
        id="driver-messages",
        title="errors that NVIDIA's drivers logged",
        looks_at="NVIDIA's lines in the kernel's log since the boot, the log of `nvidia-vgpu-mgr`",
        run=require_snapshot(_check_messages),
        explains=("libvirt-failed", "device-failed", "partition", "scheduler"),
        needs_logs=True,
    ),
)
