# SPDX-License-Identifier: Apache-2.0
"""Choose the carriers of several equal VMs at once: each as if those before it were there already."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.errors import InUse, NoCapacity
from vgpuctl.model.gpu import Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import PromisedVgpu
from vgpuctl.model.wish import VmWish
from vgpuctl.plan.choose import as_taken, choose
from vgpuctl.plan.reserve import emptied
from vgpuctl.value import replace

Choices = tuple[tuple[PromisedVgpu, ...], ...]


def choose_many(snapshot: Snapshot, wish: VmWish, vms: Sequence[tuple[str, str]], *, taking: bool = True) -> Choices:
    """Return the vGPUs of each of these VMs (name, uuid), in their order.

    `taking` False: they stay off and reserve nothing. Their records name free places first, and then go through the
    host again and again as if nothing were on it.

    Raises:
        NoCapacity: they do not all fit; `fits` says how many do now.
        VgpuctlError: what `choose` says of the first one.
    """
    chosen: list[tuple[PromisedVgpu, ...]] = []
    for name, uuid in vms:
        try:
            vgpus = choose(snapshot, replace(wish, name=name), uuid)
        except (NoCapacity, InUse) as error:
            if not taking:
                snapshot = emptied(snapshot)
                vgpus = choose(snapshot, wish, uuid)
            elif isinstance(error, InUse) and not chosen:
                raise
            else:
                raise _too_many(error, wish, len(chosen), len(vms)) from error
        chosen.append(vgpus)
        snapshot = replace(snapshot, vgpus=(*snapshot.vgpus, *_taken(wish, name, uuid, vgpus)))
    return tuple(chosen)


def _taken(wish: VmWish, name: str, uuid: str, vgpus: Sequence[PromisedVgpu]) -> tuple[Vgpu, ...]:
    return tuple(as_taken(v, name, uuid, wish.where.spread_group) for v in vgpus)


def _too_many(error: NoCapacity | InUse, wish: VmWish, fits: int, wanted: int) -> NoCapacity:
    """Say how many fit; what stands in the way of the next one is told when nothing fits at all."""
    what = ", ".join(p if n == 1 else f"{p}:{n}" for p, n in wish.profiles) or f"mode {wish.mode}"
    seen = {name: error.facts[name] for name in ("gpus", "details") if name in error.facts and not fits}
    out = error.facts.get("left_out")
    said = [f"no room for {wanted} VMs with {what}: {fits} fit now; none was made"]
    said += [str(line) for line in out] if isinstance(out, list) else []
    return NoCapacity(
        "; ".join(said),
        hint="; ".join(filter(None, (f"ask for {fits} new ones, or make room first" if fits else None, error.hint))),
        fits=fits,
        wanted=wanted,
        **seen,
    )
