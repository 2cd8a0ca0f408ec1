# SPDX-License-Identifier: Apache-2.0
"""Print the host.yaml that says what another program's files say; nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.observe import Want, observe
from vgpuctl.model.outcome import Answer
from vgpuctl.plan.imports import imported
from vgpuctl.spec.foreign import Foreign
from vgpuctl.spec.write import host_text

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def import_host(world: World, foreign: Foreign) -> Answer:
    """Return the text of a host.yaml, and what it leaves out.

    Raises:
        NotFound, InvalidInput: what was read does not fit this host.
    """
    snapshot = observe(world, Want(types=bool(foreign.definitions)))
    found = imported(foreign, snapshot)
    head = (f"from the files of {foreign.source}", *(f"left out: {line}" for line in found.left_out))
    text = host_text(found.host, {g.address: g.model for g in snapshot.gpus}, head)
    data = {"text": text, "source": foreign.source, "left_out": list(found.left_out)}
    return Answer(data, (*snapshot.warnings, *(f"left out: {line}" for line in found.left_out)))
