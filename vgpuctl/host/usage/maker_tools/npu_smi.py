# SPDX-License-Identifier: Apache-2.0
"""Huawei Ascend: `npu-smi info`, a table with two rows for each chip: its card's, and its own with the PCI address.

Its MB are MiB: a chip with 64 GiB has 65536. A chip with DDR and HBM has two pairs, of which the last one is HBM. It
tells nothing about one vNPU.

Source: outputs of npu-smi 23.0 to 25.5 for Ascend 310, 310P3, 910A and 910B in public issues and test data
(open-mmlab/mmdeploy's guides, hw-native-sys/pypto-lib, prometheus/node_exporter forks, zstackio/zstack-utility).
"""

from __future__ import annotations

import itertools
import re

from vgpuctl.host.usage.maker_tools.texts import amount, by_sensor, mib_in_bytes, ratio, table_rows
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.usage import EngineUse, GpuUse

_NAME = "npu-smi"
_PAIR = re.compile(r"([0-9]{1,9})\s*/\s*([0-9]{1,9})", re.ASCII)


def parse(text: str) -> tuple[GpuUse, ...]:
    """Return the use of each chip."""
    rows = [row for row in table_rows(text) if len(row) == 3]
    uses: list[GpuUse] = []
    for card, chip in itertools.pairwise(rows):
        address = normalize_pci(chip[1])
        if address is None or normalize_pci(card[1]) is not None:
            continue
        watts, celsius = (*card[2].split(), "", "")[:2]
        pairs = [(int(used), int(size)) for used, size in _PAIR.findall(chip[2]) if int(size)]
        used, size = pairs[-1] if pairs else (None, None)
        uses.append(
            GpuUse(
                address,
                _NAME,
                memory_size_bytes=mib_in_bytes(size),
                memory_used_bytes=mib_in_bytes(used),
                engines=EngineUse(sm=ratio(amount(chip[2].partition(" ")[0]))),
                power_watts=amount(watts),
                temperatures=by_sensor(gpu=amount(celsius)),
            )
        )
    return tuple(uses)


def _read(run: ProgramRuns) -> ToolReading:
    return ToolReading(parse(run("info")))


TOOL = UsageTool(_NAME, ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi", "/usr/bin/npu-smi"), _read)
