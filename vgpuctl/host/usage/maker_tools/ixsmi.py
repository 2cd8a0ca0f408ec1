# SPDX-License-Identifier: Apache-2.0
"""Iluvatar: `ixsmi`, a table with two rows for each card.

Source: outputs of ixsmi 3.0 to 4.4 for BI-V100, BI-V150 and MR-V100 in public guides (PaddleNLP,
Deep-Spark/ix-container-toolkit).
"""

from __future__ import annotations

from vgpuctl.host.usage.maker_tools.texts import read_card_table
from vgpuctl.host.usage.maker_tools.tool import ProgramRuns, ToolReading, UsageTool

_NAME = "ixsmi"


def _read(run: ProgramRuns) -> ToolReading:
    return ToolReading(read_card_table(run(), _NAME, utilization=(1, 2)))


TOOL = UsageTool(_NAME, ("/usr/local/corex/bin/ixsmi", "/usr/bin/ixsmi"), _read)
