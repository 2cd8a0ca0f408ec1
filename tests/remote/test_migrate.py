# SPDX-License-Identifier: Apache-2.0
"""VMs move to a host that is reached by SSH: its own vgpuctl makes its calls, in one login for all of them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.remote.conftest import OLD_VGPUCTL
from tests.remote.network import Host, Network

TARGET, OLD = "gpu02", "gpu03"
IMAGE = "/srv/images/ubuntu-24.04.qcow2"
SEND = ("--copy-storage", "--insecure-network")


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    hosts = [Host(TARGET, scenario="mixed"), Host(OLD, commands={"vgpuctl": OLD_VGPUCTL})]
    with tempfile.TemporaryDirectory(prefix="vgpuctl-moves-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        running = Network(path, hosts)
        try:
            running.know(into=running.home / ".ssh" / "known_hosts")
            yield running
        finally:
            running.close()


class Site:
    """This host, whose GPUs are simulated, and the other one."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.address = f"ssh://root@{network.hosts[TARGET].address}"

    def here(self, *words: str, status: int = 0) -> Any:
        return self._document(("--host", "sim:a100-40", *words), status)

    def there(self, *words: str, status: int = 0) -> Any:
        return self._document(("--host", self.address, *words), status)

    def _document(self, words: tuple[str, ...], status: int) -> Any:
        ran = self.network.vgpuctl("--json", "--yes", *words)
        assert ran.returncode == status, (words, ran.stdout, ran.stderr)
        document = json.loads(ran.stdout)
        return document["data"] if document["ok"] else document["error"]

    @property
    def libvirt(self) -> str:
        """The other host's simulated libvirt, as the one here reaches it."""
        (journal,) = self.network.place.glob(f"{TARGET}/**/mixed/journal*")
        return f"sim:{journal.parent}"


@pytest.fixture
def site(network: Network) -> Site:
    shutil.rmtree(network.home / ".local", ignore_errors=True)
    site = Site(network)
    assert site.there("list-vms") is not None
    return site


def test_a_vm_moves_there_and_the_other_vgpuctl_makes_its_calls(site: Site) -> None:
    site.here("create-vm", "vdi-1", "--profile", "A100-4C", "--image", IMAGE)
    plan = site.here("migrate-vm", "vdi-1", "--to", site.address, *SEND, "--dry-run")
    assert [vgpu["profile"] for vgpu in plan["vgpus"]] == ["A100-4C"]
    moved = site.here("migrate-vm", "vdi-1", "--to", site.address, *SEND, "--libvirt-uri", site.libvirt)
    assert (moved["is_live"], moved["copied_disks"]) == (True, ["vda"])
    assert site.there("show-vm", "vdi-1")["state"] == "running"
    site.here("show-vm", "vdi-1", status=2)
    changes = [entry["command"] for entry in site.there("log", "--vm", "vdi-1")]
    assert sorted(changes) == ["finish-migration", "prepare-incoming"]
    ended = site.here("end-migration", "vdi-1", "--with", site.address)
    assert ended["outcome"] == "none"
    site.there("delete-vm", "vdi-1")


def test_a_failed_move_leaves_nothing_on_the_other_host(site: Site) -> None:
    site.here("create-vm", "vdi-2", "--profile", "A100-4C", "--image", IMAGE)
    before = site.there("list-vms"), site.there("list-vgpus")
    error = site.here(
        "migrate-vm", "vdi-2", "--to", site.address, *SEND, "--libvirt-uri", "qemu+ssh://nowhere/system", status=1
    )
    assert "unable to connect to server" in error["message"]
    assert (site.there("list-vms"), site.there("list-vgpus")) == before
    assert site.here("show-vm", "vdi-2")["state"] == "running"


def test_the_other_hosts_error_is_that_of_its_vgpuctl(site: Site) -> None:
    site.here("create-vm", "vdi-3", "--profile", "A100-40C", "--image", IMAGE)
    site.there("create-vm", "other", "--profile", "A100-40C")
    error = site.here("migrate-vm", "vdi-3", "--to", site.address, *SEND, status=3)
    assert any("no" in one["what"] and one["host"] != "sim:a100-40" for one in error["facts"]["against"]), error
    site.there("delete-vm", "other")


@pytest.mark.parametrize(
    ("host", "code", "status"), [(OLD, "host-cannot", 6), ("nowhere", "unreachable", 75)], ids=["old", "unreachable"]
)
def test_a_host_that_cannot_take_it_is_named_and_nothing_changes(site: Site, host: str, code: str, status: int) -> None:
    site.here("create-vm", "vdi-4", "--profile", "A100-4C", "--image", IMAGE)
    known = site.network.hosts.get(host)
    address = f"ssh://root@{known.address if known else '10.77.0.99'}"
    error = site.here("migrate-vm", "vdi-4", "--to", address, *SEND, status=status)
    assert error["code"] == code
    assert site.here("show-vm", "vdi-4")["record"] == "ready"
