# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl top`: how much of each GPU and vGPU is used, as a table or on a live screen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Column, Listing, Page, or_dash, or_unknown

if TYPE_CHECKING:
    from vgpuctl.model.results.usage import GpuUsageResult, UsageResult, VgpuUsageResult

DEFAULT_INTERVAL, MIN_INTERVAL, MAX_INTERVAL = 5.0, 1.0, 3600.0
"""Seconds between two looks. The agent reads the GPUs every 15 seconds itself."""
_GIB, _MIB = 1 << 30, 1 << 20
_LICENSES = {"licensed": "ok", "unlicensed": "none", "unlicensed-restricted": "restricted"}


def percent(ratio: float | None) -> str:
    """Return a ratio for people, `?` if it is unknown."""
    return "?" if ratio is None else f"{ratio:.0%}"


def gib(size: float | None) -> str:
    """Return a size in bytes as GiB, without the unit."""
    return "?" if size is None else f"{size / _GIB:.1f}"


def _of(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _given(gpu: GpuUsageResult) -> float | None:
    return _of(gpu.given_mib, gpu.framebuffer_mib)


def _scheduler(gpu: GpuUsageResult) -> str | None:
    return None if gpu.scheduler is None else str(gpu.scheduler)


def _power(gpu: GpuUsageResult) -> str:
    if gpu.use is None or gpu.use.power_watts is None:
        return "?"
    limit = gpu.use.power_limit_watts
    return f"{gpu.use.power_watts:.0f}/{'?' if limit is None else f'{limit:.0f}'} W"


def _temperature(gpu: GpuUsageResult) -> float | None:
    return None if gpu.use is None else gpu.use.temperatures.get("gpu")


def _note(gpu: GpuUsageResult) -> str:
    slow = () if gpu.use is None else gpu.use.clock_event_reasons or ()
    return ", ".join((*gpu.notes, *slow))


GPUS = Listing(
    "GPUs",
    (
        Column("gpu", "GPU", lambda gpu: gpu.address),
        Column("model", "MODEL", lambda gpu: gpu.model),
        Column("mode", "MODE", lambda gpu: str(gpu.mode), is_state=True),
        Column("scheduler", "SCHEDULER", _scheduler),
        Column("sm", "SM", lambda gpu: gpu.use and gpu.use.engines.sm,
            lambda gpu: percent(gpu.use and gpu.use.engines.sm), numeric=True, unit="ratio"),
        Column("given", "MEM GIVEN", _given, lambda gpu: percent(_given(gpu)), numeric=True, unit="ratio"),
        Column("temperature", "\N{DEGREE SIGN}C", _temperature, lambda gpu: _whole(_temperature(gpu)), numeric=True),
        Column("power", "POWER", lambda gpu: gpu.use and gpu.use.power_watts, _power, numeric=True, unit="watts"),
        Column("vgpus", "VGPUS", lambda gpu: gpu.vgpus, numeric=True),
        Column("note", "NOTE", lambda gpu: _note(gpu) or None, free_text=True),
    ),
    lambda gpu: str(gpu.address),
)  # fmt: skip
"""The GPUs; the live screen has the same columns."""


def _whole(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def vgpu_label(row: VgpuUsageResult) -> str:
    """Return what people call a vGPU: its VM, for a VM's second one with its number; else its own name or carrier."""
    return f"{row.vm} #{row.index}" if row.vm and row.index else row.vm or row.name or row.carrier


def is_running(row: VgpuUsageResult) -> bool:
    """Return whether its VM runs, so that a missing value is unknown."""
    return row.use is not None or row.vm_state == "running"


def _when_running(row: VgpuUsageResult, text: str) -> str:
    """Return the text of a value, `-` if there can be none because the VM does not run."""
    return text if is_running(row) else "-"


def _sm(row: VgpuUsageResult) -> float | None:
    return None if row.use is None else row.use.engines.sm


def _size(row: VgpuUsageResult) -> int | None:
    return None if row.framebuffer_mib is None else row.framebuffer_mib * _MIB


def _used(row: VgpuUsageResult) -> int | None:
    return None if row.use is None else row.use.memory_used_bytes


def _memory_ratio(row: VgpuUsageResult) -> float | None:
    """Return the part of a vGPU's framebuffer that is used, of what the driver leaves to the guest."""
    size, reserved = _size(row), None if row.use is None else row.use.memory_reserved_bytes
    return _of(_used(row), None if size is None else size - (reserved or 0))


def _memory(row: VgpuUsageResult) -> str:
    size = f"{gib(_size(row)).removesuffix('.0')}G"
    return f"{gib(_used(row))}/{size}" if is_running(row) else f"-/{size}"


def _peak(row: VgpuUsageResult) -> str:
    return "?" if row.peak_memory_bytes is None else f"{gib(row.peak_memory_bytes)}G"


def _license(row: VgpuUsageResult) -> str:
    state = None if row.use is None else row.use.license_state
    return _when_running(row, or_unknown(None if state is None else _LICENSES.get(state, state)))


def _encoder(row: VgpuUsageResult, field: str) -> Any:
    return None if row.use is None or row.use.encoder is None else getattr(row.use.encoder, field)


def _frames(row: VgpuUsageResult) -> float | None:
    """Return the frame rate of the encoder, or of framebuffer capture: only one of them exists, as NVML reports it."""
    capture = None if row.use is None or row.use.capture is None else row.use.capture.fps
    fps: float | None = _encoder(row, "fps")
    return capture if fps is None else fps


def _hint(row: VgpuUsageResult) -> str | None:
    return row.hint if row.present else "the vGPU is missing"


VGPUS = Listing(
    "VMs",
    (
        Column("vm", "VM", lambda row: vgpu_label(row)),
        Column("profile", "PROFILE", lambda row: row.profile, lambda row: or_unknown(row.profile)),
        Column("gpu", "GPU", lambda row: row.gpu),
        Column("state", "STATE", lambda row: row.vm_state and str(row.vm_state), is_state=True),
        Column("sm", "SM", _sm, lambda row: _when_running(row, percent(_sm(row))), numeric=True, unit="ratio"),
        Column("share", "OF SHARE", lambda row: row.share_used,
            lambda row: _when_running(row, percent(row.share_used)), numeric=True, unit="ratio"),
        Column("memory", "FB USED", _used, _memory, numeric=True, unit="bytes"),
        Column("fb", "FB", _memory_ratio, lambda row: _when_running(row, percent(_memory_ratio(row))),
            numeric=True, unit="ratio"),
        Column("peak", "PEAK", lambda row: row.peak_memory_bytes, _peak, numeric=True, unit="bytes"),
        Column("encoder", "ENC", lambda row: _encoder(row, "sessions"),
            lambda row: _when_running(row, or_unknown(_encoder(row, "sessions"))), numeric=True),
        Column("fps", "FPS", _frames, lambda row: _when_running(row, _whole(_frames(row))), numeric=True),
        Column("license", "LICENCE", lambda row: row.use and row.use.license_state, _license),
        Column("hint", "HINT", _hint, free_text=True, optional=True),
        Column("owner", "OWNER", lambda row: row.owner, level="wide"),
        Column("driver", "DRIVER", lambda row: row.use and row.use.guest_driver,
            lambda row: _when_running(row, or_unknown(row.use and row.use.guest_driver)), "wide"),
        Column("carrier", "CARRIER", lambda row: row.carrier, level="wide"),
        Column("uuid", "UUID", lambda row: row.vm_uuid, level="named"),
    ),
    lambda row: vgpu_label(row),
    {"label": lambda row, key: row.labels.get(key)},
    within="vgpus",
)  # fmt: skip
"""The vGPUs with their VMs; the live screen has the same columns."""


def _page(data: UsageResult) -> Page:
    """Return what is above the table of vGPUs: one line about the host, and the GPUs."""
    from vgpuctl.cli.listings import View, make_table

    line = f"{data.host}: {summary(data)}, read {data.age_seconds:.0f} s ago"
    return Page([line, "", make_table(GPUS, View(), data.gpus)])


def summary(data: UsageResult) -> str:
    """Return how many GPUs and vGPUs a host has, and its driver."""
    lost = sum("lost" in gpu.notes for gpu in data.gpus)
    running = sum(gpu.running_vgpus for gpu in data.gpus)
    gpus = f"{len(data.gpus)} GPU{'' if len(data.gpus) == 1 else 's'}{f' ({lost} lost)' if lost else ''}"
    vgpus = sum(gpu.vgpus for gpu in data.gpus)
    return f"{gpus}, {vgpus} vGPU{'' if vgpus == 1 else 's'}, {running} running, driver {or_dash(data.driver_version)}"


@make_command(
    "top",
    page=_page,
    listing=VGPUS,
    examples=(
        ("vgpuctl top", "a live screen of the GPUs and vGPUs; ? lists its keys"),
        ("vgpuctl top --once --sort-by -share", "who uses most of what its vGPU is entitled to, now"),
        ("vgpuctl top --once --filter 'license!=licensed' -o name", "VMs whose vGPU has no licence, or does not run"),
    ),
)
@click.option("--once", is_flag=True, help="Print one table and end, as where stdout is no terminal.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(MIN_INTERVAL, MAX_INTERVAL),
    default=DEFAULT_INTERVAL,
    help="How often the live screen reads the values (5).",
)
@click.pass_obj
def top(settings: Settings, once: bool, interval: float) -> int:
    """Show how much of each GPU and each vGPU is used, by which VM.

    The values are those that the host agent read last; without an agent vgpuctl reads them itself. '?' is unknown, '-'
    is none. SM is part of the whole GPU; OF SHARE compares it with the time that the scheduler guarantees.
    """
    from vgpuctl.cli import top_source

    if wants_live_screen(settings, once):
        from vgpuctl.cli import live

        return live.run(settings, interval)
    return run.perform(
        settings,
        "top",
        lambda guard: run.CommandOutput(top_source.open_source(settings, guard.check).read()),
    )


def wants_live_screen(settings: Settings, once: bool) -> bool:
    """Return whether the result goes to a person who watches it, and not into a file or a program."""
    from vgpuctl.cli import streams

    is_collected = settings.agent_route is not None and settings.agent_route.outputs is not None
    is_table = settings.output in ("table", "wide")
    return is_table and not once and not is_collected and all(map(streams.is_terminal, (sys.stdin, sys.stdout)))
