# SPDX-License-Identifier: Apache-2.0
"""Keeps the images of one host: what its pools need comes there, and copies that nothing in the fleet uses go."""

from __future__ import annotations

import logging
from collections.abc import Callable

from vgpuctl.agent.image_client import ImageClient
from vgpuctl.agent.protocol import Fenced, FenceLost
from vgpuctl.controller.database.host_view import HostView
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.hosts.image_child import SendJob
from vgpuctl.controller.hosts.image_sender import ImageSender
from vgpuctl.controller.model import FleetHost, HostImage, Image
from vgpuctl.controller.planning.back_off import wait_after
from vgpuctl.controller.planning.fleet_room import profiles_of
from vgpuctl.controller.planning.image_plan import failed_image, image_request, seen_image, wanted_images
from vgpuctl.errors import Unreachable, VgpuctlError
from vgpuctl.model.image_copy import CopyState, ImageCopy, NotACopy
from vgpuctl.value import replace

log = logging.getLogger("vgpuctl.controller")


class ImageKeeper:
    """The images of one host, for its loop. `wake`: begins the next turn, when something was sent."""

    def __init__(self, store: Store, sender: ImageSender, wake: Callable[[], None]) -> None:
        self._store = store
        self._sender = sender
        self._wake = wake
        self.is_busy = False
        """Whether an image is on its way: the next turn comes soon."""
        self.failed: frozenset[str] = frozenset()
        """The ids of the images that the host needs and cannot have now."""

    def keep(self, client: ImageClient, view: HostView) -> frozenset[str]:
        """Compare, begin what is missing, and return the ids of the images that are ready there.

        Raises:
            Unreachable, Fenced, FenceLost: nothing can be done there.
        """
        host, rows = view.host, {row.image_id: row for row in view.host_images}
        wanted = wanted_images(host, view.pools.values(), view.desktops, view.images, profiles_of(view.room))
        self.is_busy, self.failed = False, frozenset()
        if not wanted and not rows:
            return frozenset()
        copies = {copy.path: copy for copy in client.list()}
        may_change = host.held is None
        ready = set()
        for image in wanted:
            before = rows.get(image.id)
            if before is not None and before.path != image.path:
                continue  # its former copy goes first
            copy = copies.get(image.path)
            row = self._bring(client, host, image, before, copy, view.now, may_change=may_change)
            if row.state is CopyState.READY:
                ready.add(image.id)
            elif row.state is CopyState.FAILED:
                self.failed |= {image.id}
            self.is_busy = self.is_busy or row.state in (CopyState.COPYING, CopyState.MISSING)
        unwanted = rows.keys() - {image.id for image in wanted} if may_change else frozenset()
        unused = self._store.host_images.unused(unwanted) if unwanted else frozenset()
        for row in rows.values() if may_change else ():
            image_now = view.images.get(row.image_id)
            if row.image_id in unused or image_now is None or image_now.path != row.path:
                self._drop(client, row, view.now)
        return frozenset(ready)

    def _bring(
        self,
        client: ImageClient,
        host: FleetHost,
        image: Image,
        before: HostImage | None,
        copy: ImageCopy | None,
        now: float,
        *,
        may_change: bool,
    ) -> HostImage:
        row = before or HostImage(host.id, image.id, image.path, image.is_copied)
        is_there = copy is not None and copy.state is CopyState.READY
        has_failed = copy is not None and copy.state is CopyState.FAILED and row.state is not CopyState.FAILED
        if is_there or has_failed or (not may_change and row.state is not CopyState.FAILED):
            row = seen_image(row, image, copy, now)
        elif may_change and (row.state is not CopyState.FAILED or row.not_before <= now):
            try:
                row = seen_image(row, image, client.begin(image_request(image)), now)
            except (Unreachable, Fenced, FenceLost):
                raise
            except VgpuctlError as error:
                row = failed_image(row, error, now)
            if row.state is CopyState.COPYING:
                self._send(client, host, image, row)
        if row != before:
            self._store.host_images.put(row)
        return row

    def _send(self, client: ImageClient, host: FleetHost, image: Image, row: HostImage) -> None:
        if image.file is None or row.have == row.bytes:
            return
        job = SendJob(host.name, host.address, host.host_key, client.fence, image.file, image_request(image))

        def on_end(error: VgpuctlError | None) -> None:
            try:
                if error is not None:
                    log.error("image %s to %s: %s", image.name, host.name, error.message)
                    self._store.host_images.put(failed_image(row, error, self._store.now()))
            except VgpuctlError as unstored:
                log.error("image %s to %s: %s", image.name, host.name, unstored.message)
            self._wake()

        self._sender.begin(job, on_end)

    def _drop(self, client: ImageClient, row: HostImage, now: float) -> None:
        """Have a copy deleted that nothing uses, and forget an image that was never copied."""
        if row.copied and row.not_before > now:
            return
        try:
            if row.copied:
                client.delete(row.path)
        except NotACopy:
            log.info("%s stays: its host does not know it as a copy", row.path)
        except (Unreachable, Fenced, FenceLost):
            raise
        except VgpuctlError as error:
            needed = replace(row, code=error.code, error=error.message, hint=error.hint, errors=row.errors + 1)
            self._store.host_images.put(replace(needed, not_before=now + wait_after(needed.errors)))
            return
        self._store.host_images.remove(row)
