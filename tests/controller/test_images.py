# SPDX-License-Identifier: Apache-2.0
"""Images that the controller brings to hosts with real agents: sent, fetched, rolled out, and deleted at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import RunningAgent, running
from tests.agent.image_server import ImageServer, qcow2_header, raw_image, serving, sha256
from tests.controller.conftest import IMAGE, add_host, add_image, add_pool, wait_until
from tests.controller.test_engine import ADMIN, is_ready, phase, vms, working
from tests.controller.test_store import numbered
from tests.rooms import room_of
from vgpuctl.agent.client import connect
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.engine import connect_host
from vgpuctl.controller.fleet import FleetCaller, FleetService
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.model import CallerKind, HostImage, Role
from vgpuctl.errors import InvalidInput, NotAllowed, NotFound, Refused, VgpuctlError
from vgpuctl.model.desktop import Fence
from vgpuctl.model.image_copy import CopyState, ImageRequest
from vgpuctl.value import replace

LOCAL = FleetCaller("test", Role.ADMIN, CallerKind.LOCAL)
CONTENT = qcow2_header()
NEXT = qcow2_header(size=2 << 20)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageServer]:
    with serving(tmp_path) as one:
        monkeypatch.setenv("SSL_CERT_FILE", str(one.authority))
        yield one


def service_with_host(store: Store, agent: RunningAgent) -> FleetService:
    service = FleetService(store, connect_host)
    service.add_host(ADMIN, "gpu01", f"agent:{agent.path}")
    return service


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def states(service: FleetService, name: str) -> dict[str, str]:
    return dict(service.show_image(ADMIN, name).data.hosts)


def copies(tmp_path: Path) -> list[str]:
    return sorted(path.name.partition("-")[2] for path in tmp_path.glob("state-home/vgpuctl/*/images/*"))


def test_an_image_is_sent_rolled_out_and_deleted(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    service = service_with_host(own_store, agent)
    first = service.ensure_image(LOCAL, "office-1", file=write(tmp_path / "1.qcow2", CONTENT)).data
    assert (first.sha256, first.bytes) == (sha256(CONTENT), len(CONTENT))
    assert first.path == f"/srv/images/office-1-{sha256(CONTENT)[:12]}.img"
    add_pool(own_store, image="office-1", spare=2, maximum=2)
    with working(own_store):
        wait_until(is_ready(own_store, 2), "two desktops")
        assert states(service, "office-1") == {"gpu01": "ready"}
        assert service.show_host(ADMIN, "gpu01").data.images == {"office-1": "ready"}
        assert {vm.image for vm in vms(agent).values()} == {first.path}
        with pytest.raises(Refused, match="is used by pools office and desktops office-001, office-002"):
            service.delete_image(ADMIN, "office-1")
        second = service.ensure_image(LOCAL, "office-2", file=write(tmp_path / "2.qcow2", NEXT)).data
        add_pool(own_store, image="office-2", spare=2, maximum=2)
        wait_until(lambda: {vm.image for vm in vms(agent).values()} == {second.path}, "the roll-out")
        wait_until(lambda: copies(tmp_path) == [second.path.rpartition("/")[2]], "the former image's end")
        wait_until(lambda: states(service, "office-1") == {}, "its row's end")
        service.delete_image(ADMIN, "office-1")
        service.delete_pool(ADMIN, "office")
        wait_until(lambda: not own_store.pools.list(), "the end of the pool")
        service.delete_image(ADMIN, "office-2")
        wait_until(lambda: copies(tmp_path) == [], "the end of its copy")
        wait_until(lambda: own_store.host_images.list() == (), "the end of its row")


def test_an_image_with_clones_of_others_stays(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    service = service_with_host(own_store, agent)
    path = service.ensure_image(LOCAL, "office", file=write(tmp_path / "1.qcow2", CONTENT)).data.path
    add_pool(own_store, spare=0, maximum=1)
    with working(own_store):
        wait_until(lambda: states(service, "office") == {"gpu01": "ready"}, "the image")
        connect(f"agent:{agent.path}").create_vm("roots", profile="A100-4C", image=path)
        service.delete_pool(ADMIN, "office")
        wait_until(lambda: not own_store.pools.list(), "the end of the pool")
        wait_until(lambda: "base image of roots's disk" in states(service, "office").get("gpu01", ""), "the reason")
        assert copies(tmp_path) == [path.rpartition("/")[2]]


def test_a_host_fetches_an_image(own_store: Store, agent: RunningAgent, server: ImageServer, tmp_path: Path) -> None:
    service = service_with_host(own_store, agent)
    url = server.put("/office.qcow2", CONTENT)
    service.ensure_image(ADMIN, "office", url=url, sha256=sha256(NEXT))
    add_pool(own_store, spare=1, maximum=1)
    with working(own_store):
        wait_until(lambda: states(service, "office").get("gpu01", "").startswith("failed: "), "the failure")
        assert "is not the image that was meant" in states(service, "office")["gpu01"]
        wait_until(
            lambda: "its image failed" in (service.show_desktop(ADMIN, "office-001").data.why or ""), "the reason"
        )
        asked = len(server.requests)
        server.put("/office.qcow2", NEXT)
        service.ensure_image(ADMIN, "office", url=url, sha256=sha256(NEXT))
        wait_until(is_ready(own_store, 1), "a desktop")
    assert len(server.requests) == asked + 1, "what does not go away by itself is not tried again and again"


def test_what_the_host_has_of_a_file_counts(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    service = service_with_host(own_store, agent)
    content = raw_image(66 << 20)
    image = service.ensure_image(LOCAL, "office", file=write(tmp_path / "1.img", content)).data
    own = Fence(own_store.incarnation, 0, "earlier")
    link = HostLink("gpu01", f"agent:{agent.path}")
    link.host().announce_fleet(own)
    client = link.images(own)
    client.begin(ImageRequest(image.path, image.bytes, image.sha256))
    assert client.send(image.path, 0, content[: 1 << 20]) == 1 << 20
    add_pool(own_store, spare=1, maximum=1)
    with working(own_store):
        wait_until(is_ready(own_store, 1), "a desktop")
    assert states(service, "office") == {"gpu01": "ready"}


def test_a_file_that_was_changed_is_not_sent(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    service = service_with_host(own_store, agent)
    file = tmp_path / "1.img"
    service.ensure_image(LOCAL, "office", file=write(file, CONTENT))
    write(file, NEXT)
    add_pool(own_store, spare=1, maximum=1)
    with working(own_store):
        wait_until(lambda: "the file was changed" in states(service, "office").get("gpu01", ""), "the reason")
    (row,) = own_store.host_images.list()
    assert (row.code, row.errors) == ("checksum-differs", 1)


def test_a_roll_out_waits_for_the_image(own_store: Store, agent: RunningAgent) -> None:
    service = service_with_host(own_store, agent)
    add_image(own_store)
    add_image(own_store, "next", "/srv/images/none.qcow2")
    add_pool(own_store, spare=1, maximum=1)
    with working(own_store):
        wait_until(is_ready(own_store, 1), "a desktop")
        add_pool(own_store, image="next", spare=1, maximum=1)
        wait_until(lambda: "does not exist" in states(service, "next").get("gpu01", ""), "the reason")
        assert phase(service, "office-001") == "ready"
        assert vms(agent)["office-001"].image == IMAGE


def test_a_desktop_that_waits_for_its_image_says_so(own_store: Store) -> None:
    image = add_image(own_store)
    pool = add_pool(own_store)
    host = add_host(own_store)
    own_store.desktops.tick(pool.id, lambda *_: numbered(1))
    (desktop,) = own_store.desktops.unplaced()
    own_store.rooms.set(host.id, room_of())
    assert own_store.desktops.place(desktop.id, host.id, None, 1)
    row = HostImage(host.id, image.id, image.path, copied=True, state=CopyState.COPYING, bytes=200, have=81)
    own_store.host_images.put(row)
    shown = FleetService(own_store, connect_host).show_desktop(ADMIN, "office-001").data
    assert (shown.phase, shown.why) == ("waiting", "image copying 40 % on gpu01")


def test_only_hosts_that_need_an_image_get_it(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    other_directory = tmp_path / "other"
    other_directory.mkdir()
    with running("sim:t4", other_directory) as other:
        service = service_with_host(own_store, agent)
        service.add_host(ADMIN, "gpu02", f"agent:{other.path}")
        service.ensure_image(LOCAL, "office", file=write(tmp_path / "1.img", CONTENT))
        add_pool(own_store, spare=1, maximum=1)
        with working(own_store):
            wait_until(is_ready(own_store, 1), "a desktop")
            wait_until(lambda: len(own_store.rooms.list()[0]) == 2, "both hosts")
    assert states(service, "office") == {"gpu01": "ready"}


BAD_FILES = {
    "a backing file": (qcow2_header(b"base.qcow2"), "needs its backing file"),
    "a data file": (qcow2_header(data_file=True), "data_file"),
    "cut off": (qcow2_header()[:150_000], "is cut off"),
    "text": (b"hello\n", "no image"),
    "empty": (b"", "has 0 bytes"),
    "vmdk": (b"KDMV" + bytes(508), "is vmdk"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_whole_image_is_refused(own_store: Store, tmp_path: Path, name: str) -> None:
    content, text = BAD_FILES[name]
    with pytest.raises(InvalidInput, match=text) as caught:
        FleetService(own_store, connect_host).ensure_image(LOCAL, "x", file=write(tmp_path / "f", content))
    assert caught.value.code == "bad-image"
    assert own_store.images.list() == ()


def test_bad_sources_store_nothing(own_store: Store, tmp_path: Path) -> None:
    service = FleetService(own_store, connect_host)
    file, digits = write(tmp_path / "f", CONTENT), "0" * 64
    bad: list[dict[str, object]] = [
        {},
        {"path": "/a/b", "file": file},
        {"path": "/a/b", "folder": "/a"},
        {"path": "/a/../b"},
        {"file": file, "sha256": digits},
        {"file": file, "size": 17},
        {"file": str(tmp_path)},
        {"file": "/dev/zero"},
        {"file": str(tmp_path / "none")},
        {"file": file, "folder": "relative"},
        {"url": "https://h/x"},
        {"url": "http://h/x", "sha256": digits},
        {"url": "https://ada:secret@h/x", "sha256": digits},
        {"url": "https://h/x#y", "sha256": digits},
        {"url": "https://h/x", "sha256": "0"},
        {"url": "https://h/x", "sha256": digits, "size": 0},
    ]
    for source in bad:
        with pytest.raises(VgpuctlError) as caught:
            service.ensure_image(LOCAL, "x", **source)
        assert "secret" not in str(caught.value), source
    with pytest.raises(InvalidInput, match="name: "):
        service.ensure_image(LOCAL, "a/b", file=file)
    with pytest.raises(NotAllowed, match="comes from elsewhere"):
        service.ensure_image(ADMIN, "x", file=file)
    assert own_store.images.list() == ()
    with pytest.raises(NotFound):
        service.show_image(ADMIN, "x")


def test_an_image_for_many_hosts_comes_with_advice(own_store: Store, tmp_path: Path) -> None:
    service = FleetService(own_store, connect_host)
    file = write(tmp_path / "f", CONTENT)
    assert service.ensure_image(LOCAL, "few", file=file).warnings == ()
    for number in range(6):
        add_host(own_store, f"gpu{number:02}")
    (warning,) = service.ensure_image(LOCAL, "many", file=file).warnings
    assert "to 6 hosts takes about 0.0 hours: with --url" in warning
    assert service.ensure_image(LOCAL, "many", file=file).warnings == (), "once"


def test_the_images_of_hosts(store: Store) -> None:
    image, host, other = add_image(store), add_host(store), add_host(store, "gpu02")
    row = HostImage(host.id, image.id, image.path, copied=True)
    failed = replace(
        row,
        state=CopyState.FAILED,
        bytes=5 << 40,
        have=3 << 40,
        code="no-space",
        error="full",
        errors=3,
        not_before=9e9,
    )
    second = replace(row, host_id=other.id, state=CopyState.READY)
    for one in (row, failed, second):
        store.host_images.put(one)
    assert set(store.host_images.list()) == {failed, second}
    assert store.host_images.list(other.id) == (second,)
    assert store.host_images.unused([image.id]) == {image.id}
    add_pool(store)
    assert store.host_images.unused([image.id, "other"]) == {"other"}
    store.changes.take_hosts()
    store.host_images.retry(image.id)
    assert store.host_images.list(host.id) == (replace(failed, errors=0, not_before=0.0),)
    assert store.changes.take_hosts() == {host.id}
    store.host_images.remove(second)
    assert [one.host_id for one in store.host_images.list()] == [host.id]
    store.hosts.remove("gpu01", "test")
    assert store.host_images.list() == ()


def test_a_row_outlives_its_image(store: Store) -> None:
    image, host = add_image(store), add_host(store)
    store.host_images.put(HostImage(host.id, image.id, image.path, copied=True, state=CopyState.READY))
    store.images.delete("office", "test")
    assert [one.path for one in store.host_images.list()] == [IMAGE]
