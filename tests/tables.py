# SPDX-License-Identifier: Apache-2.0
"""Tables in the documents that follow from the program; VGPUCTL_REGENERATE=1 writes them again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path


def check_table(page: Path, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Check that a page has this table; no other table there has its first header."""
    table = f"| {' | '.join(headers)} |\n|{'---|' * len(headers)}\n"
    table += "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    text = page.read_text(encoding="utf-8")
    if os.environ.get("VGPUCTL_REGENERATE"):
        before, _, rest = text.partition(f"| {headers[0]} |")
        after = rest.partition("\n\n")[2]
        text = f"{before}{table}\n{after}" if after else f"{before}{table}"
        page.write_text(text, encoding="utf-8")
    assert table in text, "run the tests with VGPUCTL_REGENERATE=1"
