# SPDX-License-Identifier: Apache-2.0
"""Moore Threads: `mthreads-gmi --query --json`, a document with a list of cards.

Numbers have their unit (`81920MiB`, `96.66W`, `27C`), and keys may end in a space. A card without a PCI address in
its output is left out. It tells nothing about vGPUs; `mthreads-gmi vgpu -q` does, and no public output of it is known.

Source: an output of mthreads-gmi with driver 3.3.5 for MTT S5000 in a public test of a fork of prometheus/node_exporter
(collector/asset/cmdb); one of another collector for MTT S4000 has the same keys.
"""

from __future__ import annotations

from vgpuctl.host.usage.maker_tools.texts import amount, at_path, by_sensor, items, mib_in_bytes, ratio, word
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.usage import EngineUse, GpuUse

_NAME = "mthreads-gmi"


def parse(text: str) -> tuple[GpuUse, ...]:
    """Return the use of each card."""
    uses: list[GpuUse] = []
    for card in items(parse_json(text), "GPU"):
        address = normalize_pci(str(at_path(card, "PCI", "Bus ID")))
        if address is None:
            continue
        uses.append(
            GpuUse(
                address,
                _NAME,
                uuid=word(at_path(card, "GPU UUID")),
                serial=word(at_path(card, "Serial Number")),
                vbios=word(at_path(card, "MTBios Version")),
                memory_size_bytes=mib_in_bytes(amount(at_path(card, "FB Memory Usage", "Total"), "MiB")),
                memory_used_bytes=mib_in_bytes(amount(at_path(card, "FB Memory Usage", "Used"), "MiB")),
                engines=EngineUse(
                    sm=ratio(amount(at_path(card, "Utilization", "Gpu"), "%")),
                    memory=ratio(amount(at_path(card, "Utilization", "Memory"), "%")),
                ),
                power_watts=amount(at_path(card, "Power Readings", "Power Draw"), "W"),
                power_limit_watts=amount(at_path(card, "Power Readings", "Current Power Limit"), "W"),
                temperatures=by_sensor(gpu=amount(at_path(card, "Temperature", "GPU Current Temp"), "C")),
            )
        )
    return tuple(uses)


def _read(run: ProgramRuns) -> ToolReading:
    return ToolReading(parse(run("--query", "--json")))


TOOL = UsageTool(_NAME, ("/usr/bin/mthreads-gmi",), _read)
