# SPDX-License-Identifier: Apache-2.0
"""The GPU models that the simulator knows, from data/models.json: of the built-in scenarios, and cards beside them.

The figures are the vendors' published ones. The program never reads them: it believes what the simulated
driver says, as it believes a real one. Not published, and filled in here: the ids of H100's time-sliced types (those
before its MIG types'), most of RTX PRO 6000's (counted between the four that were seen), the numbers of VFs of H100,
A40, A10 and RTX PRO 4500, that card's PCI id and the ids of its types (only the time-sliced ones with a published size
and number are here), and the placements of RTX PRO 6000's GPU instances (as A30 has them, which has four slices too).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache
def models() -> Mapping[str, Mapping[str, Any]]:
    """Return every known model by its short name."""
    file = Path(__file__).parent / "data" / "models.json"
    loaded: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text())
    return loaded


def known_names() -> tuple[str, ...]:
    """Return the short names."""
    return tuple(models())


def model(name: str) -> Mapping[str, Any] | None:
    """Return a model by short name, full name or product name, letters' case aside."""
    wanted = name.casefold()
    for short, entry in models().items():
        if wanted in {short.casefold(), entry["model"].casefold(), *(n.casefold() for n in entry["names"])}:
            return entry
    return None
