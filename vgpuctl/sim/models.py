# SPDX-License-Identifier: Apache-2.0
"""The GPU models that the simulator knows (data/models.json): those of the built-in scenarios, and further cards.

The figures are the vendors' published ones. Only the simulator reads them: vgpuctl uses what the simulated driver
reports, as with a real one. These are not published, and filled in here: the ids of H100's time-sliced types (those
before its MIG types'), most of RTX PRO 6000's (interpolated between four observed ids), the numbers of VFs of H100,
A40, A10 and RTX PRO 4500, that card's PCI id and the ids of its types (only the time-sliced ones with a published size
and number are here), and the placements of RTX PRO 6000's GPU instances (copied from A30, which also has four slices).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache
def load_models() -> Mapping[str, Mapping[str, Any]]:
    """Return every known model by its short name."""
    file = Path(__file__).parent / "data" / "models.json"
    models: Mapping[str, Mapping[str, Any]] = json.loads(file.read_text())
    return models


def model_names() -> tuple[str, ...]:
    """Return the short names of the known models."""
    return tuple(load_models())


def find_model(name: str) -> Mapping[str, Any] | None:
    """Return a model by short name, full name or product name, ignoring case."""
    folded_name = name.casefold()
    for short, entry in load_models().items():
        if folded_name in {short.casefold(), entry["model"].casefold(), *(n.casefold() for n in entry["names"])}:
            return entry
    return None
