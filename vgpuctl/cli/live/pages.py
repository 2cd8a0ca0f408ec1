# SPDX-License-Identifier: Apache-2.0
"""The texts of the pages over the table: the keys, and all about one vGPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.cli.commands.top import gib, is_running, percent, vgpu_label
from vgpuctl.cli.live.layout import plain
from vgpuctl.cli.shown import or_dash, or_unknown, value_text
from vgpuctl.errors import VgpuctlError

if TYPE_CHECKING:
    from vgpuctl.model.results.usage import UsageResult, VgpuUsageResult
    from vgpuctl.model.usage import ProcessUse

KEYS = (
    ("q, Ctrl-C", "leave"),
    ("up, down, page up, page down", "move; the mouse works too"),
    ("Enter", "all about this vGPU, and the processes in its VM; on a GPU: only its vGPUs"),
    ("Tab", "from the vGPUs to the GPUs and back"),
    ("s, S", "sort by the next column; the other way round"),
    ("/", "filter: a word, or conditions as for --filter, such as state=running,profile=L40S-*"),
    ("g", "keep the vGPUs of a GPU together"),
    ("e", "more events, none, or the last four"),
    ("p", "pause"),
    ("+, -", "look more often; more rarely"),
    ("?", "this page; Esc leaves it"),
)  # fmt: skip
LEGEND = (
    "?  unknown         -  none, or the VM does not run",
    "+  80 % or more    !  95 % or more",
    "SM         part of the whole GPU's cores",
    "OF SHARE   SM, of the time that the scheduler guarantees; ? where it guarantees none",
    "FB         framebuffer, of what the driver leaves to the guest; Windows guests may keep it reserved",
)  # fmt: skip


def help_text() -> str:
    """Return the page of the keys."""
    width = max(len(keys) for keys, _ in KEYS) + 2
    return "\n".join([*(f"{keys:<{width}}{text}" for keys, text in KEYS), "", *LEGEND])


def detail_text(usage: UsageResult, row: VgpuUsageResult, processes: Sequence[ProcessUse] | VgpuctlError | None) -> str:
    """Return all about a vGPU. `processes`: those in its VM, why they are unknown, or None while they are read."""
    use = row.use
    memory = None if use is None else use.memory_used_bytes
    expiry = None if use is None or use.license_expiry is None else time.strftime("%F", time.gmtime(use.license_expiry))
    peak = "? (no history)" if row.peak_memory_bytes is None else f"{gib(row.peak_memory_bytes)} GiB"
    neighbours = [r for r in usage.vgpus if r.gpu == row.gpu and r is not row]
    size = "?" if row.framebuffer_mib is None else f"{row.framebuffer_mib / 1024:g}"
    pairs = [
        ("VM", f"{or_dash(row.vm)} ({or_dash(row.vm_state)}{'' if row.managed else ', unmanaged'})"),
        ("owner", or_dash(row.owner)),
        ("labels", value_text(row.labels)),
        ("vGPU", f"{or_unknown(row.profile)} on {row.gpu}, {row.carrier}{'' if row.present else ', missing'}"),
        ("SM", percent(None if use is None else use.engines.sm)),
        ("time share", f"{percent(row.time_share)}, of which used {percent(row.share_used)}"),
        ("encoder", percent(None if use is None else use.engines.encoder)),
        ("decoder", percent(None if use is None else use.engines.decoder)),
        ("framebuffer", f"{gib(memory)} of {size} GiB"),
        ("highest in 35 days", peak),
        ("licence", f"{or_unknown(use and use.license_state)}{f' until {expiry}' if expiry else ''}"),
        ("driver in the guest", or_unknown(use and use.guest_driver)),
        ("hint", or_dash(row.hint)),
        ("on the same GPU", ", ".join(vgpu_label(r) for r in neighbours) or "-"),
    ]
    if not is_running(row):
        pairs = [(name, value) for name, value in pairs if name not in _OF_RUNNING_VMS]
    lines = [f"{name + ':':<21}{plain(value)}" for name, value in pairs]
    return "\n".join([*lines, "", *(_process_lines(row, processes) if is_running(row) else ())])


_OF_RUNNING_VMS = ("SM", "time share", "encoder", "decoder", "framebuffer", "licence", "driver in the guest")


def _process_lines(row: VgpuUsageResult, processes: Sequence[ProcessUse] | VgpuctlError | None) -> list[str]:
    title = "processes in the guest:"
    if processes is None:
        return [f"{title} reading them ..."]
    if isinstance(processes, VgpuctlError):
        return [f"{title} ? ({plain(processes.message)})"]
    own = [p for p in processes if p.carrier in (None, row.carrier)]
    rows = [f"{p.pid:>9}  {plain(p.name or '?'):<20}  {percent(p.engines.sm):>4}" for p in own]
    return [title, f"{'PID':>9}  {'NAME':<20}  {'SM':>4}", *rows] if rows else [f"{title} none"]
