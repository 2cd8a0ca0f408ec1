# SPDX-License-Identifier: Apache-2.0
"""Plan a scheduler by way of modprobe: which file gets which word, and what has to happen before it counts."""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.errors import HostCannot
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.scheduler import SchedulerSpec
from vgpuctl.model.step import Step
from vgpuctl.scheduler.driver import MODULE_VERSION, PROC_VERSION
from vgpuctl.scheduler.modprobe import EACH, EVERYWHERE, ModprobeFile, in_force, lost, merged, settings
from vgpuctl.scheduler.registry import KEY, encode, generation, weights_since
from vgpuctl.steps.modprobe import PutModprobeFile
from vgpuctl.steps.scheduler import words

_REBUILD = {
    "initramfs-tools": "update-initramfs -u -k all",
    "dracut.conf.d": "dracut --force --regenerate-all",
    "dracut.conf": "dracut --force --regenerate-all",
    "mkinitcpio.conf": "mkinitcpio -P",
}
"""What is in /etc -> the command that makes the initramfs anew."""


def word_for(gpu: Gpu, wanted: SchedulerSpec, driver: str | None, before: int | None) -> int:
    """Return the word that asks this GPU's driver for a scheduler. `before`: the word that is in the files now.

    Raises:
        HostCannot: the driver's version is not known, or it has no such scheduler.
    """
    adaptive = gpu.scheduler.limits.adaptive if gpu.scheduler is not None and gpu.scheduler.limits else None
    kind = generation(driver, adaptive=adaptive)
    facts = {"gpu": gpu.address, "check": "scheduler", "driver": driver}
    if kind is None:
        raise HostCannot(
            f"the version of the driver of {gpu.address} is not known, and the word {KEY} differs between versions",
            hint=f"cat {MODULE_VERSION} {PROC_VERSION}",
            **facts,
        )
    try:
        return encode(kind, wanted, before=(before or 0) if weights_since(driver) else 0)
    except ValueError as error:
        raise HostCannot(
            f"{gpu.address} cannot have the scheduler {words(wanted)}: {error}",
            hint=f"vgpuctl show-gpu {gpu.address} shows its driver",
            **facts,
        ) from error


def modprobe_steps(
    gpu: Gpu, wanted: SchedulerSpec, files: tuple[ModprobeFile, ...], driver: str | None
) -> tuple[Step, ...]:
    """Return the step that writes the word; none when the files say it already.

    Raises:
        Refused: the parameter is set where it cannot be changed safely.
        HostCannot: as `word_for`.
    """
    before = in_force(settings(files), gpu.address)
    word = word_for(gpu, wanted, driver, before)
    if before == word:
        return ()
    new = merged(files, gpu.address, word)
    was = next((f.text for f in files if f.path == new.path), None)
    what = f"{KEY}=0x{word:08X} ({words(wanted)}) for {gpu.address}"
    return (PutModprobeFile(new.path, new.text, None, was, what=what),)


def modprobe_notes(gpu: Gpu, files: tuple[ModprobeFile, ...], etc: Iterable[str]) -> tuple[str, ...]:
    """Return what people must know: when it counts, the initramfs, and what the files say beside it.

    `etc`: the names in /etc, by which the host's way of making an initramfs is known.
    """
    names = frozenset(etc)
    command = next((line for name, line in _REBUILD.items() if name in names), None)
    found = settings(files)
    notes = ["it takes effect when the driver nvidia is loaded again or the host is rebooted, not before"]
    if command is not None:
        notes.append(f"where the initramfs holds nvidia.ko, make it anew first: {command}")
    shared = [s for s in found if s.name == EVERYWHERE and KEY in s.value]
    if shared:
        notes.append(
            f"{shared[-1].path}:{shared[-1].line} sets {KEY} for every GPU; the entry for {gpu.address} is expected to"
            " go before it: see show-gpu once the driver is loaded"
        )
    notes += [
        f"{s.path}:{s.line} sets {s.name} too and does not count: only the last line of a parameter does"
        for s in lost(found)
        if s.name == EACH
    ]
    return tuple(notes)


def next_load_notes(
    gpu: Gpu, wanted: SchedulerSpec, files: tuple[ModprobeFile, ...], driver: str | None
) -> tuple[str, ...]:
    """Return what people must know when NVML sets a scheduler and modprobe's files ask for another one."""
    word = in_force(settings(files), gpu.address)
    if word is None or generation(driver) is None or word == word_for(gpu, wanted, driver, word):
        return ()
    return (
        f"modprobe's files ask for {KEY}=0x{word:08X}, which counts from the driver's next load until restore-host ran;"
        " --via modprobe changes that",
    )
