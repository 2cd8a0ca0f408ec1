# SPDX-License-Identifier: Apache-2.0
"""Plan a scheduler set through modprobe: which file gets which value, and what must happen before it applies."""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.errors import HostCannot
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.operations.steps.system_files import WriteModprobeFile
from vgpuctl.ports.step import Step
from vgpuctl.scheduler.driver_texts import MODULE_VERSION, PROC_VERSION
from vgpuctl.scheduler.limits import scheduler_text
from vgpuctl.scheduler.modprobe_files import (
    ALL_GPUS_PARAMETER,
    PER_GPU_PARAMETER,
    ModprobeFile,
    file_with_dword,
    find_configured_dword,
    overridden_settings,
    parse_settings,
)
from vgpuctl.scheduler.registry_dword import REGISTRY_KEY, driver_generation, encode_dword, supports_weights

_INITRAMFS_COMMANDS = {
    "initramfs-tools": "update-initramfs -u -k all",
    "dracut.conf.d": "dracut --force --regenerate-all",
    "dracut.conf": "dracut --force --regenerate-all",
    "mkinitcpio.conf": "mkinitcpio -P",
}
"""Name in /etc -> the command that rebuilds the initramfs."""


def scheduler_word(gpu: Gpu, desired: SchedulerSpec, driver: str | None, current_word: int | None) -> int:
    """Return the registry DWORD that selects a scheduler for this GPU's driver. `current_word`: the one in the files.

    Raises:
        HostCannot: the driver's version is unknown, or it has no such scheduler.
    """
    adaptive = gpu.scheduler.limits.supports_adaptive if gpu.scheduler is not None and gpu.scheduler.limits else None
    generation = driver_generation(driver, adaptive=adaptive)
    facts = {"gpu": gpu.address, "check": "scheduler", "driver": driver}
    if generation is None:
        raise HostCannot(
            f"the version of the driver of {gpu.address} is not known, and the word {REGISTRY_KEY} differs "
            "between versions",
            hint=f"cat {MODULE_VERSION} {PROC_VERSION}",
            **facts,
        )
    try:
        return encode_dword(generation, desired, previous=(current_word or 0) if supports_weights(driver) else 0)
    except ValueError as error:
        raise HostCannot(
            f"{gpu.address} cannot have the scheduler {scheduler_text(desired)}: {error}",
            hint=f"vgpuctl show-gpu {gpu.address} shows its driver",
            **facts,
        ) from error


def modprobe_steps(
    gpu: Gpu, desired: SchedulerSpec, files: tuple[ModprobeFile, ...], driver: str | None
) -> tuple[Step, ...]:
    """Return the step that writes the DWORD; none when the files already have it.

    Raises:
        Refused: the parameter is set where it cannot be changed safely.
        HostCannot: as `scheduler_word`.
    """
    before = find_configured_dword(parse_settings(files), gpu.address)
    word = scheduler_word(gpu, desired, driver, before)
    if before == word:
        return ()
    new = file_with_dword(files, gpu.address, word)
    old_text = next((f.text for f in files if f.path == new.path), None)
    summary_text = f"{REGISTRY_KEY}=0x{word:08X} ({scheduler_text(desired)}) for {gpu.address}"
    return (WriteModprobeFile(new.path, new.text, old_text, summary_text),)


def modprobe_notes(gpu: Gpu, files: tuple[ModprobeFile, ...], etc: Iterable[str]) -> tuple[str, ...]:
    """Return notes for the user: when the setting applies, the initramfs, and related settings in the files.

    `etc`: the names in /etc, which show how the host builds its initramfs.
    """
    etc_names = frozenset(etc)
    command = next((cmd for name, cmd in _INITRAMFS_COMMANDS.items() if name in etc_names), None)
    settings = parse_settings(files)
    notes = ["it takes effect when the driver nvidia is loaded again or the host is rebooted, not before"]
    if command is not None:
        notes.append(f"if the initramfs contains nvidia.ko, rebuild it first: {command}")
    global_settings = [s for s in settings if s.name == ALL_GPUS_PARAMETER and REGISTRY_KEY in s.value]
    if global_settings:
        notes.append(
            f"{global_settings[-1].path}:{global_settings[-1].line} sets {REGISTRY_KEY} for every GPU; the entry for "
            f"{gpu.address} is expected to"
            " go before it: see show-gpu once the driver is loaded"
        )
    notes += [
        f"{s.path}:{s.line} also sets {s.name}, but has no effect: the last line of a parameter wins"
        for s in overridden_settings(settings)
        if s.name == PER_GPU_PARAMETER
    ]
    return tuple(notes)


def next_load_notes(
    gpu: Gpu, desired: SchedulerSpec, files: tuple[ModprobeFile, ...], driver: str | None
) -> tuple[str, ...]:
    """Return notes for the user when NVML sets a scheduler and modprobe's files set another one."""
    word = find_configured_dword(parse_settings(files), gpu.address)
    if word is None or driver_generation(driver) is None or word == scheduler_word(gpu, desired, driver, word):
        return ()
    return (
        f"modprobe's files set {REGISTRY_KEY}=0x{word:08X}, which applies from the driver's next load "
        "until restore-host runs;"
        " --via modprobe changes that",
    )
