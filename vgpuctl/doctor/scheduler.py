# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU scheduler: what runs is what is asked for, and the driver's options say what they seem to say."""

from __future__ import annotations

from collections.abc import Iterator

from vgpuctl.doctor.check import (
    Check,
    Finding,
    Look,
    Needs,
    fail,
    judged_by_host,
    not_applicable,
    ok,
    unknown,
    warn,
)
from vgpuctl.doctor.gpus import shortened
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.scheduler import Policy, SchedulerSpec
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.scheduler.driver import MODULE_VERSION, PROC_VERSION, loaded_version
from vgpuctl.scheduler.kernel_log import logged
from vgpuctl.scheduler.limits import runs_on, satisfies
from vgpuctl.scheduler.modprobe import FOLDERS, PARAMS, ModprobeFile, Setting, in_force, loaded, lost, settings
from vgpuctl.scheduler.registry import KEY, Generation, decode, generation, suspicion
from vgpuctl.steps.scheduler import command, words

_NO_GPU = "no GPU here has NVIDIA's driver"


def _asked(look: Look, snapshot: Snapshot) -> Finding:
    asking = [(gpu, gpu.desired_scheduler) for gpu in _gpus(snapshot) if gpu.desired_scheduler is not None]
    if not asking:
        return not_applicable("host.yaml asks for no scheduler of a GPU with NVIDIA's driver")
    seen = [(gpu, spec, _runs(look, snapshot, gpu, spec)) for gpu, spec in asking]
    wrong = [(gpu, spec) for gpu, spec, runs in seen if runs is False]
    if wrong:
        again = command(wrong[0][0].address, wrong[0][1])
        return warn(
            *shortened([_line(look, gpu, spec) for gpu, spec in wrong]),
            fix=f"{again} --drain; what was written for modprobe counts once the driver is loaded again",
        )
    dark = [_line(look, gpu, spec) for gpu, spec, runs in seen if runs is None]
    if dark:
        return unknown(*shortened(dark))
    return ok(*shortened([_line(look, gpu, spec) for gpu, spec in asking]))


def _runs(look: Look, snapshot: Snapshot, gpu: Gpu, spec: SchedulerSpec) -> bool | None:
    """Say whether a GPU runs what is asked for; None when neither NVML nor the driver's log and parameters tell."""
    state = runs_on(gpu)
    if state is not None:
        return satisfies(state, spec)
    told = _logged(look, gpu)
    if told is not None and told is not spec.policy:
        return False
    word, kind = loaded(look.file(PARAMS).text or "", gpu.address), _generation(look, snapshot, gpu)
    if word is None or kind is None:
        return True if told is not None and spec == SchedulerSpec(told) else None
    try:
        return decode(kind, word) == spec
    except ValueError:
        return False


def _logged(look: Look, gpu: Gpu) -> Policy | None:
    """Return the policy that the kernel log tells; what NVML sets later it does not tell, but then NVML does."""
    state = logged(look.kernel or (), gpu.address)
    return state.policy if state is not None else None


def _line(look: Look, gpu: Gpu, spec: SchedulerSpec) -> str:
    state = runs_on(gpu)
    word = loaded(look.file(PARAMS).text or "", gpu.address)
    told = _logged(look, gpu)
    log = "what runs is not known" if told is None else f"{told} runs by the kernel log"
    runs = f"{state.policy or 'a policy that is not known'} runs" if state is not None else log
    given = f", the driver was loaded with {KEY}=0x{word:08X}" if word is not None else ""
    return f"{gpu.address}: {words(spec)} is asked for, {runs}{given}"


def _lines(look: Look, snapshot: Snapshot) -> Finding:
    if not _gpus(snapshot):
        return not_applicable(_NO_GPU)
    found, problems = _settings(look)
    gone = [f"{s.path}:{s.line} sets {s.name}, and does not count" for s in lost(found)]
    if gone:
        last = {s.name: s for s in found}
        counts = [f"{s.path}:{s.line} counts for {s.name}" for s in last.values()]
        return fail(
            *shortened(gone),
            *counts,
            fix="the kernel keeps the last value of a parameter: put all keys into one line, joined by ';'",
        )
    if problems:
        return unknown(*problems)
    return ok(f"{len(found)} line(s) set registry words, each parameter once")


def _meaning(look: Look, snapshot: Snapshot) -> Finding:
    gpus = _gpus(snapshot)
    if not gpus:
        return not_applicable(_NO_GPU)
    found, problems = _settings(look)
    given = [(gpu, where, word) for gpu in gpus for where, word in _words(look, found, gpu) if word is not None]
    if not given:
        return unknown(*problems) if problems else ok(f"no {KEY} is set for any GPU")
    kinds = {gpu.address: _generation(look, snapshot, gpu) for gpu, _, _ in given}
    if None in kinds.values():
        return unknown(f"the driver's version is not known (NVML, {MODULE_VERSION}, {PROC_VERSION})")
    read = [(f"{gpu.address}, {where}", kind, word) for gpu, where, word in given if (kind := kinds[gpu.address])]
    wrong = [f"{what}: {why}" for what, kind, word in read if (why := _why(kind, word)) is not None]
    if wrong:
        return warn(
            *shortened(wrong),
            fix="vgpuctl set-scheduler GPU --policy POLICY --via modprobe writes the word as this driver reads it",
        )
    return ok(*shortened([f"{what}: {words(decode(kind, word))}" for what, kind, word in read]))


def _why(kind: Generation, word: int) -> str | None:
    try:
        decode(kind, word)
    except ValueError as error:
        return str(error)
    return suspicion(kind, word)


def _words(look: Look, found: tuple[Setting, ...], gpu: Gpu) -> Iterator[tuple[str, int | None]]:
    yield "loaded", loaded(look.file(PARAMS).text or "", gpu.address)
    yield "at the next load", in_force(found, gpu.address)


def _gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in snapshot.gpus if gpu.nvidia_driver)


def _generation(look: Look, snapshot: Snapshot, gpu: Gpu) -> Generation | None:
    limits = gpu.scheduler.limits if gpu.scheduler is not None else None
    said = loaded_version(look.file(MODULE_VERSION).text, look.file(PROC_VERSION).text)
    version = snapshot.nvml.driver_version or said
    return generation(version, adaptive=limits.adaptive if limits is not None else None)


def _settings(look: Look) -> tuple[tuple[Setting, ...], list[str]]:
    """Return which registry words modprobe's files set, and why some of them cannot be read."""
    files, problems = modprobe_files(look)
    return settings(files), problems


def modprobe_files(look: Look) -> tuple[tuple[ModprobeFile, ...], list[str]]:
    """Return modprobe's files, of namesakes the one in the first directory, and why some cannot be read.

    The check has to ask for the directories as `configs`.
    """
    files: dict[str, ModprobeFile] = {}
    problems: list[str] = []
    for folder in FOLDERS:
        listed = look.folder(folder)
        problems += [listed.problem] if listed.problem else []
        for name in listed.names or ():
            if not name.endswith(".conf") or name in files:
                continue
            read = look.file(f"{folder}/{name}")
            problems += [read.problem] if read.problem else []
            files[name] = ModprobeFile(f"{folder}/{name}", read.text or "")
    return tuple(files.values()), problems


_MODPROBE = Needs(files=(PARAMS, MODULE_VERSION, PROC_VERSION), configs=FOLDERS)

CHECKS = (
    Check(
        id="scheduler",
        title="each GPU runs the scheduler that host.yaml asks for",
        looks_at=f"NVML, the kernel's log, `{PARAMS}`, `/etc/vgpuctl/host.yaml`",
        judge=judged_by_host(_asked),
        needs=Needs(files=(PARAMS, MODULE_VERSION, PROC_VERSION)),
        explains=("scheduler",),
        logs=True,
    ),
    Check(
        id="registry-lines",
        title="no option of nvidia.ko is lost behind a second line",
        looks_at=f"`NVreg_RegistryDwords` in `{'/*.conf`, `'.join(FOLDERS)}/*.conf`",
        judge=judged_by_host(_lines),
        needs=_MODPROBE,
        explains=("scheduler",),
    ),
    Check(
        id="registry-word",
        title=f"{KEY} means on this driver what it was written for",
        looks_at=f"`{PARAMS}`, `{MODULE_VERSION}`, `{PROC_VERSION}`, `{'/*.conf`, `'.join(FOLDERS)}/*.conf`",
        judge=judged_by_host(_meaning),
        needs=_MODPROBE,
        explains=("scheduler",),
    ),
)
