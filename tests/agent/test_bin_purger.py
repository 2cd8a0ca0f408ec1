# SPDX-License-Identifier: Apache-2.0
"""Deleted disks by the agent: a member's wait in the bin, which only root empties before their time."""

from __future__ import annotations

from pathlib import Path

from tests.agent.test_healing import Parts, on_host
from tests.agent.test_members import ALICE, HOST, Site, code_of
from tests.agent.test_members import site as site
from vgpuctl import library
from vgpuctl.agent.bin_purger import BinPurger
from vgpuctl.model.results.deleted_disks import DeletedDiskResult

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
KEEPS = """\
version: 1
agent:
  allow: {networks: [default], pools: [default], folders: [/srv/images]}
  limits: {each_account: {keep_deleted_days: 3}}
"""


def deleted(host: str = HOST) -> tuple[DeletedDiskResult, ...]:
    return library.open_host(host).list_deleted().data


def test_what_a_member_deletes_waits_and_only_root_purges_it(site: Site) -> None:
    site.host_file.write_text(KEEPS)
    assert site.ask(ALICE, "create-vm", name="hers", profile="A100-4C", image=IMAGE)["ok"]
    assert site.ask(ALICE, "delete-vm", name="hers")["changed"]
    (disk,) = deleted()
    assert (disk.vm, disk.account, disk.expired) == ("hers", "alice", False)
    assert site.ask(ALICE, "list-deleted")["data"][0]["id"] == disk.id
    for call, arguments in (
        ("purge-deleted", {"names": [disk.id]}),
        ("purge-deleted", {"expired": True}),
        ("purge-deleted", {"everything": True}),
        ("restore-disk", {"name": disk.id}),
    ):
        assert code_of(site.ask(ALICE, call, **arguments)) == "not-allowed", call
    for use in ({"disk": [disk.path]}, {"image": disk.path}):
        assert code_of(site.ask(ALICE, "create-vm", name="x", profile="A100-4C", **use)) == "not-allowed"
    assert code_of(site.ask(ALICE, "list-images", paths=[disk.path])) == "not-allowed"
    assert site.ask(ALICE, "create-vm", name="hers", profile="A100-4C", image=IMAGE)["ok"], "the name is free"
    assert deleted() == (disk,)
    library.open_host(HOST).purge_deleted(disk.id)
    assert deleted() == ()


def test_the_agent_purges_what_has_expired(tmp_path: Path) -> None:
    async def act(parts: Parts) -> None:
        purger = BinPurger(parts.ports, parts.operations)
        (disk,) = deleted("sim:mixed")
        assert disk.vm == "cad-07"
        parts.clock.seconds = 0
        await purger.purge()
        assert (parts.done(), deleted("sim:mixed")) == ([], (disk,))
        parts.clock.seconds = 4e9
        await purger.purge()
        assert parts.done() == ["purge-deleted"]

    on_host(tmp_path, act, "sim:mixed")
