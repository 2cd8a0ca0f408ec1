# SPDX-License-Identifier: Apache-2.0
"""One thing of a fleet file, and how a dry run checks it: the controller does, but for what the file itself makes.

The controller does not know in a dry run what earlier parts make. What depends on them is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vgpuctl.controller.model import GROUP_MARK, Image
from vgpuctl.controller.planning.pool_spec import parse_pool, refuse_shared_names
from vgpuctl.controller.planning.pool_vm import refuse_image
from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.model.results.fleet import FleetFileResult


class FleetPart(NamedTuple):
    """One thing of a file. `before`: as the controller has it, None if it does not; `make`: makes it so."""

    kind: str
    name: str
    before: Mapping[str, object] | None
    after: Mapping[str, object]
    make: Callable[[], Any]


class PartChecks:
    """The checks of a dry run, part by part; what the parts before make counts as there."""

    def __init__(self, now: FleetFileResult) -> None:
        self._specs = {name: parse_pool(spec, "spec") for name, spec in now.pools.items()}
        self._images: dict[str, Image] = {}
        self._pools: set[str] = set()
        self._people: set[str] = set()

    def check(self, part: FleetPart) -> tuple[str, ...]:
        """Return the warnings about a part; the client's calls only check.

        Raises:
            VgpuctlError: it would be refused.
        """
        if part.kind == "pool":
            self._check_pool(part)
        try:
            warnings: tuple[str, ...] = part.make().warnings
        except (InvalidInput, NotFound) as error:
            if not self._is_about_made(error):
                raise
            warnings = ()
        if part.kind == "image":
            self._images[part.name] = _image(part)
        elif part.kind == "pool":
            self._pools.add(part.name)
        elif part.kind == "person":
            groups: Any = part.after.get("groups", ())
            self._people |= {part.name, *(f"{GROUP_MARK}{one}" for one in groups)}
        return () if part.after.get("who") in self._people else warnings

    def _check_pool(self, part: FleetPart) -> None:
        spec = parse_pool(dict(part.after), "spec")
        before = self._specs.get(part.name)
        if spec.image in self._images and (before is None or before.image != spec.image):
            refuse_image(spec, self._images[spec.image])
        refuse_shared_names(part.name, spec, {name: one for name, one in self._specs.items() if name != part.name})
        self._specs[part.name] = spec

    def _is_about_made(self, error: InvalidInput | NotFound) -> bool:
        """Return whether a refusal is about an image or a pool that a part before makes, or changes."""
        return error.facts.get("image") in self._images or error.facts.get("pool") in self._pools


def _image(part: FleetPart) -> Image:
    fields = {**(part.before or {}), **part.after}
    return Image("", part.name, str(fields.get("version", "1")), "", str(fields.get("os", "linux")),
                 retired=bool(fields.get("retired")))  # fmt: skip
