# SPDX-License-Identifier: Apache-2.0
"""Which images a host should have, when a failed one is tried again, and that a roll-out waits for its image."""

from __future__ import annotations

from tests.unit.controller.planning.fleets import HOST, IMAGE, NOW, desktop_of, pool_of
from tests.unit.controller.planning.test_pool_plan import ready
from vgpuctl.controller.model import FleetHostState, HostImage, PoolState
from vgpuctl.controller.planning.image_plan import (
    LASTING_SECONDS,
    image_request,
    image_wait,
    rows_by_key,
    seen_image,
    slow_copy_warning,
    state_text,
    wanted_images,
)
from vgpuctl.controller.planning.pool_plan import plan_pool
from vgpuctl.model.image_copy import CopyState, ImageCopy, ImageRequest
from vgpuctl.value import replace

SENT = replace(IMAGE, file="/srv/office.qcow2", sha256="0" * 64, bytes=1000)
ROW = HostImage(HOST.id, IMAGE.id, IMAGE.path, copied=True)
FAILED = ImageCopy(IMAGE.path, CopyState.FAILED, 1000, 0, "url-failed", "it does not answer")


def wanted(pool=None, desktops=(), host=HOST, offered="A16-2B"):
    pools = (replace(pool_of(), image_id=IMAGE.id),) if pool is None else (pool,)
    return wanted_images(host, pools, desktops, {IMAGE.id: IMAGE}, {offered})


def test_a_host_gets_the_images_of_pools_whose_desktops_it_can_have():
    pool = replace(pool_of(), image_id=IMAGE.id)
    assert wanted() == (IMAGE,), "also where all is taken now"
    assert wanted(offered="A100-40C") == ()
    assert wanted(replace(pool, state=PoolState.DRAINING)) == ()
    assert wanted(replace(pool, state=PoolState.PAUSED)) == (IMAGE,)
    assert wanted(replace(pool, spec=replace(pool.spec, hosts={"site": "nowhere"}))) == ()
    cordoned = replace(HOST, state=FleetHostState.CORDONED)
    assert wanted(host=cordoned) == ()
    own = desktop_of(host_id=HOST.id, image_id=IMAGE.id)
    assert wanted(host=cordoned, desktops=(own,)) == (IMAGE,)
    assert wanted(host=cordoned, desktops=(replace(own, absent=True),)) == ()


def test_what_an_agent_is_asked_for():
    assert image_request(SENT) == ImageRequest(IMAGE.path, 1000, "0" * 64)
    assert image_request(IMAGE).shared


def test_when_a_failed_image_is_tried_again():
    first = seen_image(ROW, SENT, FAILED, NOW)
    assert (first.errors, first.not_before) == (1, NOW + 5)
    assert seen_image(first, SENT, FAILED, NOW).not_before == NOW + 10
    lasting = seen_image(ROW, SENT, replace(FAILED, code="bad-image"), NOW)
    assert lasting.not_before == NOW + LASTING_SECONDS
    copying = seen_image(first, SENT, ImageCopy(IMAGE.path, CopyState.COPYING, None, 400), NOW)
    assert (copying.errors, copying.error, state_text(copying)) == (1, None, "copying 40 %"), "it may fail again"
    assert seen_image(first, SENT, ImageCopy(IMAGE.path, CopyState.READY, 1000, 1000), NOW).errors == 0
    assert state_text(first) == "failed: it does not answer"


def test_why_a_desktop_waits_for_its_image():
    desktop = desktop_of(host_id=HOST.id, image_id=IMAGE.id)
    assert image_wait(desktop, {}, "gpu01") == "image not there yet on gpu01"
    assert image_wait(desktop, rows_by_key((replace(ROW, state=CopyState.READY),)), "gpu01") == ""


def test_a_roll_out_waits_for_the_image():
    image = replace(IMAGE, id="image-2", path="/srv/images/2.img")
    pool = replace(pool_of(spare=1), image_id=image.id)
    desktop = ready(1)

    def moved(with_image):
        return plan_pool(pool, [desktop], image, NOW, lambda: "52:54:00:00:00:09", {"h1": HOST}, with_image).move_image

    assert moved(None) == (desktop.id,)
    assert moved({desktop.host_id}) == (desktop.id,)
    assert moved(set()) == ()


def test_what_takes_hours_is_said():
    assert slow_copy_warning(SENT, 5) is None
    assert "20.0 GB to 10 hosts takes about 1.1 hours" in (slow_copy_warning(replace(SENT, bytes=20 * 10**9), 10) or "")
    assert slow_copy_warning(replace(SENT, bytes=21 * 10**9), 1) is not None
    assert slow_copy_warning(replace(SENT, file=None, url="https://h/x", bytes=1 << 50), 100) is None
