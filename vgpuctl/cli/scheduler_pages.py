# SPDX-License-Identifier: Apache-2.0
"""The lines and tables of NVIDIA's vGPU scheduler: configured, running, and each vGPU's guaranteed share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.cli.tables import Block, Table

Data = Mapping[str, Any]


def pairs(gpu: Data) -> tuple[tuple[str, str], ...]:
    """Return the lines of show-gpu; none for a GPU without a scheduler."""
    scheduler = gpu.get("scheduler")
    if scheduler is None:
        return ()
    lines = [
        ("scheduler", f"{running_text(scheduler['running'])}; asked for: {configured_text(scheduler['configured'])}")
    ]
    for name, title in (("scheduler_at_load", "driver loaded with"), ("scheduler_next", "next load")):
        if gpu.get(name) is not None:
            lines.append((title, configured_text(gpu[name])))
    return tuple(lines)


def share_table(gpu: Data) -> list[Block]:
    """Return the table of shares."""
    rows = tuple(
        (_vm_label(share), share["profile"], _percent(share), _slice(share), share["note"])
        for share in gpu.get("shares") or ()
    )
    headers = ("VM", "PROFILE", "GUARANTEED", "SLICE", "WHY")
    return ["", Table(headers, rows, frozenset({"GUARANTEED", "SLICE"}))] if rows else []


def _vm_label(share: Data) -> str:
    return str(share["vm"] or (f"vGPU {share['name']}" if share["name"] else share["carrier"]))


def change_line(data: Data) -> str:
    """Return one line about a GPU whose scheduler was set."""
    if data["takes_effect"] != "now":
        return f"{data['address']}: {configured_text(data['scheduler']['configured'])} when its driver is loaded next"
    return f"{data['address']}: {running_text(data['scheduler']['running'])}"


def running_text(state: Data | None) -> str:
    """Return the running scheduler: `fixed_share, slices of 2 ms`."""
    if state is None or state["policy"] is None:
        return "?"
    parts = [state["policy"]]
    if state["time_slice_us"] is not None:
        average = " on the average" if state["adaptive"] else ""
        parts.append(f"slices of {_ms(state['time_slice_us'])}{average}")
    if state["averaging_factor"] is not None:
        parts.append(f"averaging factor {state['averaging_factor']}")
    source = "" if state["source"] == "NVML" else f" (by the {state['source']})"
    return f"{', '.join(parts)}{source}"


def configured_text(spec: Data | None) -> str:
    """Return the configured scheduler: `fixed_share, time slice 2 ms`."""
    if spec is None:
        return "nothing"
    texts = (
        ("time_slice_ms", "time slice {} ms"),
        ("frequency_hz", "{} Hz"),
        ("averaging_factor", "averaging factor {}"),
    )
    return ", ".join([spec["policy"], *(text.format(spec[name]) for name, text in texts if spec[name] is not None)])


def _percent(share: Data) -> str:
    percent = share["guaranteed_percent"]
    return "-" if percent is None else f"{percent:g} %"


def _slice(share: Data) -> str:
    return "-" if share["time_slice_us"] is None else _ms(share["time_slice_us"])


def _ms(us: float) -> str:
    return f"{us / 1000:.4g} ms"
