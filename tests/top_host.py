# SPDX-License-Identifier: Apache-2.0
"""A simulated host with a few tens of VMs for the live screen of `top`, always the same: its clock stands still.

`take_picture` is the second picture in README; tests/unit/cli/test_top.py writes it with VGPUCTL_REGENERATE=1.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from tests.callers import host_of
from tests.hosts import EagerClock, open_sim_host
from vgpuctl.cli.listings import View
from vgpuctl.cli.live.app import TopApp
from vgpuctl.cli.live.state import TopState
from vgpuctl.cli.top_source import AGENT, Reading, UsageSource
from vgpuctl.library import GpuHost
from vgpuctl.model.event import SEVERITIES, Event, EventType, Severity
from vgpuctl.value import replace

FIRST, SECOND, CORDONED, LOST = "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0", "0000:af:00.0"
SCENARIO = f"""
version: 1
nvidia: {{driver: "580.65.06", guest_driver: "580.65.06"}}
storage: {{filesystem_gib: 4000, pools: [{{name: default}}]}}
gpus:
  - {{model: L40S, address: "{FIRST}"}}
  - {{model: L40S, address: "{SECOND}"}}
  - {{model: L40S, address: "{CORDONED}"}}
  - {{model: L40S, address: "{LOST}"}}
faults:
  - {{on: nvml-usage, match: "{LOST}", code: 15, message: GPU is lost}}
"""
TIME = 1_795_814_043.0
"""21:14:03 UTC."""
SIZE = (150, 40)
EVENTS = (
    (EventType.VM_STARTED, "20:02:40", {"vm": "cad-04", "gpu": CORDONED}),
    (EventType.CORDON, "20:31:09", {"gpu": CORDONED, "reason": "cordoned"}),
    (EventType.GPU_XID, "21:13:58", {"gpu": LOST, "reason": "Xid 79, GPU has fallen off the bus"}),
    (EventType.GPU_LOST, "21:13:58", {"gpu": LOST}),
)


def busy_host(directory: Path) -> GpuHost:
    """Return a host whose four GPUs have VMs, one of them lost and one cordoned."""
    simulated = open_sim_host(directory, text=SCENARIO, clock=EagerClock(TIME))
    numbers = itertools.count(1)
    ports = replace(
        simulated.ports, name="gpu-host-07", new_uuid=lambda: f"00000000-0000-4000-8000-{next(numbers):012x}"
    )
    host = host_of(simulated, None, ports)
    host.set_scheduler(FIRST, "equal_share")
    host.set_scheduler(SECOND, "fixed_share")
    for pattern, profile, count, gpu in (
        ("vdi-{:03}", "L40S-4Q", 10, FIRST),
        ("eng-{:02}", "L40S-6Q", 7, SECOND),
        ("cad-{:02}", "L40S-8Q", 4, CORDONED),
        ("lab-{:02}", "L40S-12Q", 3, LOST),
    ):
        host.create_vms(pattern, count=count, profile=profile, gpu=(gpu,), owner="ada", labels={"site": "ghent"})
    host.stop_vm("eng-03", force=True)
    host.cordon(CORDONED)
    return host


def look_with_events(host: GpuHost) -> Reading:
    """Return the use of a host, as an agent would that saw these events."""
    events = tuple(
        Event(f"boot-{n}", kind, SEVERITIES.get(kind, Severity.INFO), f"2026-11-27T{time}.000Z", **about)
        for n, (kind, time, about) in enumerate(EVENTS, 1)
    )
    return replace(UsageSource(None, lambda: host).sample(), source=AGENT, events=events)


@asynccontextmanager
async def screen(app: TopApp, size: tuple[int, int]) -> AsyncIterator[Pilot[Any]]:
    """Run the screen without a terminal, until its first look is shown."""
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        yield pilot


async def settle(pilot: Pilot[Any], *keys: str) -> None:
    """Press keys, and wait until all that follows is shown."""
    await pilot.press(*keys)
    app: Any = pilot.app
    await asyncio.to_thread(app.feed.wait)
    await pilot.pause()
    await pilot.pause()


def shown(pilot: Pilot[Any]) -> list[str]:
    """Return the lines on the screen."""
    compositor: Any = pilot.app.screen._compositor
    return ["".join(segment.text for segment in strip).rstrip() for strip in compositor.render_strips()]


async def take_picture(directory: Path) -> str:
    """Return a screenshot as SVG; its fonts are the reader's own."""
    host = busy_host(directory)
    app = TopApp(
        lambda: look_with_events(host),
        lambda vm: host.guest_processes(vm).data,
        View(sort_by=("-share",)),
        interval=5.0,
        state=TopState(View(sort_by=("-share",)), 5.0, monotonic=lambda: 0.0),
    )
    async with screen(app, SIZE):
        return re.sub(r"@font-face \{.*?\}\s*", "", app.export_screenshot(title="vgpuctl top"), flags=re.DOTALL)


def picture_text(svg: str) -> str:
    """Return what a picture shows, without its layout: that depends on the version of the library that draws it."""
    texts = re.findall(r"<text[^>]*>(.*?)</text>", svg, flags=re.DOTALL)
    return "".join("".join(unescape(text).split()) for text in texts)
