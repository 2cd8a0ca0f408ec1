# SPDX-License-Identifier: Apache-2.0
"""Profiles in `placement: demand:` of host.yaml that no GPU of this host offers: they have no effect, so warn.

One file may serve many hosts, and name profiles that only others offer. A profile of a model that is here, or a text
that is no profile name, is probably a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.gpu.profiles import lists_all_types, matches_type, parse_typed_name
from vgpuctl.model.profile_name import parse_profile_name
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.value import Value


class UnofferedProfile(Value):
    """A profile in `demand:` that no GPU here offers. `is_mistake`: probably not intended for another host.

    `message`: the line in the file, and similar names.
    """

    is_mistake: bool
    message: str


def find_unoffered_profiles(
    snapshot: Snapshot, demand: Mapping[str, float], text: str, path: str
) -> tuple[UnofferedProfile, ...]:
    """Return these profiles; none while some GPU may offer more than it reports. `text`: of the file `path`."""
    types = [offered for gpu in snapshot.gpus for offered in gpu.types]
    missing = [profile for profile in demand if not any(matches_type(offered, profile) for offered in types)]
    if (
        not missing
        or not types
        or not all(lists_all_types(gpu, snapshot.vgpus_on(gpu.address)) for gpu in snapshot.gpus)
    ):
        return ()
    import difflib

    from vgpuctl.config.yaml_reader import (
        load_document,  # slow to import, and rarely needed
    )

    document = load_document(text, path)
    offered = sorted({item.profile for item in types})
    boards = {parsed.board for parsed in map(parse_profile_name, offered) if parsed is not None}
    unoffered = []
    for profile in missing:
        line = document.position(("placement", "demand", profile), of_key=True).line
        similar = difflib.get_close_matches(profile, offered, n=3, cutoff=0.5)
        suggestion = f" (did you mean {', '.join(similar)}?)" if similar else ""
        parts = [parse_typed_name(item) for item in profile.split("|")]
        is_mistake = any(parsed is None or parsed.board in boards for parsed in parts)
        message = f"{path}:{line}: placement.demand: no GPU here offers '{profile}', it counts for nothing{suggestion}"
        unoffered.append(UnofferedProfile(is_mistake, message))
    return tuple(unoffered)
