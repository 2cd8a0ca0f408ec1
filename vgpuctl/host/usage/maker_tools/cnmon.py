# SPDX-License-Identifier: Apache-2.0
"""Cambricon: `cnmon`, a table with two rows for each card.

Versions before 5 show no PCI address, so their cards are left out.

Source: outputs of cnmon 1.16 to 5.10 for MLU220 and MLU370 in public guides (PaddlePaddle/docs, PaddleNLP).
"""

from __future__ import annotations

from vgpuctl.host.usage.maker_tools.texts import read_card_table
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool

_NAME = "cnmon"


def _read(run: ProgramRuns) -> ToolReading:
    return ToolReading(read_card_table(run(), _NAME, utilization=(0, 2)))


TOOL = UsageTool(_NAME, ("/usr/bin/cnmon",), _read)
