# SPDX-License-Identifier: Apache-2.0
"""Which images a host should have, what people see of them, and how long it takes to send one to hosts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from vgpuctl.controller.model import Desktop, FleetHost, FleetHostState, HostImage, Image, Pool, PoolState
from vgpuctl.controller.planning.back_off import wait_after
from vgpuctl.controller.planning.fleet_room import matches_profile, wanted_profiles
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.image_copy import CopyState, ImageCopy, ImageRequest
from vgpuctl.value import replace

LASTING_CODES = frozenset(("checksum-differs", "bad-image", "url-refused"))
"""What does not go away by itself: it is tried again after an hour, or when an admin asks."""
LASTING_SECONDS = 3600.0
SEND_BYTES_PER_SECOND = 50 << 20
"""What one SSH connection carried at least (measured)."""
MANY_HOSTS, MANY_BYTES = 5, 20 * 10**9
"""Above these numbers the site's own server brings an image to hosts sooner than the controller."""


def wanted_images(
    host: FleetHost,
    pools: Iterable[Pool],
    desktops: Iterable[Desktop],
    images: Mapping[str, Image],
    profiles: Collection[str],
) -> tuple[Image, ...]:
    """Return the images that a host should have: of pools whose desktops it can take, and of the desktops it has.

    `desktops`: the host's own; `profiles`: all that it can have when it is empty.
    """
    ids = {desktop.image_id for desktop in desktops if desktop.host_id == host.id and not desktop.absent}
    if host.state is FleetHostState.ACTIVE:
        ids |= {pool.image_id for pool in pools if _can_take(host, pool, profiles)}
    return tuple(sorted((images[one] for one in ids if one in images), key=lambda image: image.name))


def _can_take(host: FleetHost, pool: Pool, profiles: Collection[str]) -> bool:
    if pool.state is PoolState.DRAINING or any(host.labels.get(key) != text for key, text in pool.spec.hosts.items()):
        return False
    return any(matches_profile(one, wanted) for wanted in wanted_profiles(pool.spec) for one in profiles)


def image_request(image: Image) -> ImageRequest:
    """Return what an agent is asked for."""
    return ImageRequest(image.path, image.bytes, image.sha256, image.url, shared=not image.is_copied)


def seen_image(row: HostImage, image: Image, copy: ImageCopy | None, now: float) -> HostImage:
    """Return a row as its host says that the image is."""
    if copy is None:
        return replace(row, state=CopyState.MISSING, have=0)
    row = replace(row, state=copy.state, bytes=copy.bytes or image.bytes, have=copy.have)
    if copy.state is CopyState.FAILED:
        error = VgpuctlError(copy.error or copy.code or "failed", hint=copy.hint)
        return failed_image(row, error, now, copy.code)
    errors = 0 if copy.state is CopyState.READY else row.errors
    return replace(row, code=None, error=None, hint=None, errors=errors, not_before=0.0)


def failed_image(row: HostImage, error: VgpuctlError, now: float, code: str | None = None) -> HostImage:
    """Return a row whose image failed now; `code`: the error's, where it has another one than its class."""
    code = code or error.code
    wait = LASTING_SECONDS if code in LASTING_CODES else wait_after(row.errors + 1)
    return replace(
        row, state=CopyState.FAILED, code=code, error=error.message[:1000], hint=error.hint, errors=row.errors + 1,
        not_before=now + wait,
    )  # fmt: skip


def state_text(row: HostImage) -> str:
    """Return what people see of an image on a host."""
    if row.state is CopyState.COPYING and row.bytes:
        return f"copying {100 * row.have // row.bytes} %"
    return f"{row.state}: {row.error}" if row.error else str(row.state)


def image_wait(desktop: Desktop, rows: Mapping[tuple[str, str], HostImage], host_name: str) -> str:
    """Return why a desktop waits for its image on its host; empty: the image is there."""
    row = rows.get((desktop.host_id or "", desktop.image_id))
    if row is not None and row.state is CopyState.READY:
        return ""
    text = "not there yet" if row is None or row.state is CopyState.MISSING else state_text(row)
    return f"image {text} on {host_name}"


def rows_by_key(rows: Iterable[HostImage]) -> dict[tuple[str, str], HostImage]:
    """Return rows by the ids of host and image."""
    return {(row.host_id, row.image_id): row for row in rows}


def slow_copy_warning(image: Image, hosts: int) -> str | None:
    """Return the sentence about an image that takes long to send to all hosts; None: it does not."""
    if image.file is None or image.bytes is None or (hosts <= MANY_HOSTS and image.bytes <= MANY_BYTES):
        return None
    hours = image.bytes * max(1, hosts) / SEND_BYTES_PER_SECOND / 3600
    return (
        f"to send {image.bytes / 10**9:.1f} GB to {hosts} hosts takes about {hours:.1f} hours: with --url each host "
        "fetches it from a server of the site"
    )
