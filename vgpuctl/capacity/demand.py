# SPDX-License-Identifier: Apache-2.0
"""Profiles in `placement: demand:` of host.yaml that no GPU of this host offers: they count for nothing, so say so.

One file may be on many hosts, and ask for what only others have. What is of a model that is here, or no name at all,
was hardly meant so.
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.capacity.profiles import lists_all, means, typed_name
from vgpuctl.model.profile_name import parse_name
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.value import Value


class NotOffered(Value):
    """A profile that is asked for and that no GPU here offers. `mistaken`: hardly meant for another host.

    `text`: where it stands, and what somebody may have meant.
    """

    mistaken: bool
    text: str


def not_offered(snapshot: Snapshot, demand: Mapping[str, float], text: str, name: str) -> tuple[NotOffered, ...]:
    """Return these profiles; none while some GPU may offer more than it tells. `text`: of the file `name`."""
    types = [known for gpu in snapshot.gpus for known in gpu.types]
    missing = [profile for profile in demand if not any(means(known, profile) for known in types)]
    if not missing or not types or not all(lists_all(gpu, snapshot.taken_on(gpu.address)) for gpu in snapshot.gpus):
        return ()
    import difflib

    from vgpuctl.spec.read import load  # the reader is slow to import, and mostly there is nothing to tell

    document = load(text, name)
    known = sorted({one.profile for one in types})
    boards = {parsed.board for parsed in map(parse_name, known) if parsed is not None}
    found = []
    for profile in missing:
        line = document.position(("placement", "demand", profile), of_key=True).line
        near = difflib.get_close_matches(profile, known, n=3, cutoff=0.5)
        meant = f" (did you mean {', '.join(near)}?)" if near else ""
        parts = [typed_name(one) for one in profile.split("|")]
        mistaken = any(parsed is None or parsed.board in boards for parsed in parts)
        told = f"{name}:{line}: placement.demand: no GPU here offers '{profile}', it counts for nothing{meant}"
        found.append(NotOffered(mistaken, told))
    return tuple(found)
