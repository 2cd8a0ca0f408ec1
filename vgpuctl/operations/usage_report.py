# SPDX-License-Identifier: Apache-2.0
"""The advice of a host as one HTML page, for people without a shell: no script, and it loads nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import jinja2

from vgpuctl.domain.text_templates import read_template
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.advice import SizeAdviceResult
from vgpuctl.model.results.host import MonitoringFileResult
from vgpuctl.operations.advise import OWNER, advise_sizes
from vgpuctl.operations.monitoring import DIRECTORY

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

NAME = "usage.html"
_GIB, _MIB_PER_GIB = 1 << 30, 1024


def make_usage_report(host: Host, *, by: str = OWNER) -> QueryResult[MonitoringFileResult]:
    """Return the page. `by`: as for `advise_sizes`.

    Raises:
        HostCannot: there is no history.
    """
    advice = advise_sizes(host, by=by)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(read_template(DIRECTORY, f"{NAME}.j2"))
    text = template.render(
        host=_printable(host.name),
        advice=advice.data,
        counts=f"{count_text(len(advice.data.sizes), 'vGPU')}, {count_text(advice.data.days, 'day')}",
        rows=[_row(size) for size in advice.data.sizes],
        commands=list(dict.fromkeys(size.command for size in advice.data.sizes if size.command is not None)),
        now=_when(host.clock.now()),
    )
    return QueryResult(MonitoringFileResult(NAME, _printable(text, keep="\n")), advice.warnings)


def _row(size: SizeAdviceResult) -> dict[str, object]:
    peak = size.peak_memory_bytes
    whole = size.framebuffer_mib << 20
    return {
        "size": size,
        "peak": "?" if peak is None else f"{peak / _GIB:.1f} of {size.framebuffer_mib / _MIB_PER_GIB:g} GiB",
        "percent": 0 if peak is None or not whole else min(100, round(100 * peak / whole)),
        "when": "" if size.peak_time is None else _when(size.peak_time),
        "frees": "" if size.frees_mib is None else f"{size.frees_mib / _MIB_PER_GIB:g} GiB",
    }


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _printable(text: str, keep: str = "") -> str:
    """Return a text without control characters, which names of others may have."""
    return "".join(c for c in text if c.isprintable() or c in keep)
