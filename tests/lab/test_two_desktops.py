"""Two users and two desktops: Debian guests of libvirt in L2, the agent there, and a controller on L1.

The guests are whole ones: systemd, the real helper at a virtio port, PAM, an address by DHCP. The controller logs in by
SSH with a key that reaches the agent alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.controller.conftest import add_image, add_pool
from tests.lab import desktop
from tests.lab.build import build_desktop
from tests.lab.console import ask_guest, guest_devices
from tests.lab.machine import Lab
from tests.lab.outside import ONE_KEY, make_home
from tests.lab.session import PLACE
from tests.lab.test_after_boot import INSTALLED
from tests.lab.test_agent import SERVES
from tests.lab.vgpuctl_in import A100, must, put_gpu, use_defaults
from vgpuctl.controller.database.store import Store, open_store, upgrade
from vgpuctl.controller.engine import Engine, connect_host
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import CallerKind, FleetCaller, Right, Role
from vgpuctl.model.results.fleet import DesktopResult

ADMIN = FleetCaller("test", Role.ADMIN)
IMAGES = "/srv/images"
ACCOUNT = f"""agent:
  accounts: {{fleet: fleet}}
  allow: {{folders: [{IMAGES}], networks: [default], pools: [default]}}
"""
PATIENT = f"""cd {PLACE}/vgpuctl/agent
sed -i 's/^ANSWER_SECONDS = .*/ANSWER_SECONDS = 240.0/' helper_link.py && grep -q 'ANSWER_SECONDS = 240' helper_link.py
"""
"""Has the agent wait longer for helpers: two emulated guests share an emulated processor."""
VM = {"memory": "512MiB", "vcpus": 1, "networks": ["default"]}
USERS = ("ada", "bob")
SECONDS = 900.0
LOG_ON = "systemd-run --quiet --collect --unit desk-{user} --uid {user} -p PAMName=lightdm -p Type=exec sleep 600"


class Fleet:
    """The controller. `service`: its calls."""

    def __init__(self, lab: Lab, store: Store, service: FleetService) -> None:
        self.lab = lab
        self.store = store
        self.service = service

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end, f"not within {SECONDS:g} s: {what}; {self.desktops()}"
            time.sleep(0.5)

    def desktops(self) -> tuple[DesktopResult, ...]:
        return self.service.list_desktops(ADMIN).data

    def phases(self) -> list[str]:
        return [one.phase for one in self.desktops()]

    def of(self, user: str) -> DesktopResult:
        (own,) = [one for one in self.desktops() if one.user == user]
        return own

    def seen_users(self, user: str) -> tuple[str, ...] | None:
        """Return who is logged on at a user's desktop, as its host reports."""
        report = self.store.desktops.find(self.of(user).name).report
        return None if report is None else report.guest_users

    def leases(self) -> dict[str, str]:
        """Return the address of each MAC address, as libvirt's DHCP server gave them out."""
        listed = self.lab.run("virsh net-dhcp-leases default").stdout
        return {mac: address for mac, address in re.findall(r"([0-9a-f:]{17})\s+ipv4\s+([0-9.]+)/", listed)}


@contextmanager
def fleet_of(lab: Lab, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Yield a controller whose only host is L2, where the agent lets its account make desktops of the image."""
    lab.run(INSTALLED)
    put_gpu(lab, "mdev-pf")
    use_defaults(lab, ACCOUNT)
    lab.run(PATIENT)
    must(lab, "install-host", "--agent")
    lab.run("useradd --create-home fleet && usermod -aG vgpuctl fleet && " + ONE_KEY.strip().replace("ada", "fleet"))
    lab.wait_until(SERVES)
    disk = lab.hotplug_disk(build_desktop(lab.built))
    lab.run(f"mkdir -p {IMAGES} && mount -o ro /dev/{disk} {IMAGES}")
    make_home(lab, directory)
    monkeypatch.setenv("HOME", str(directory))
    url = f"sqlite:///{directory}/fleet.db"
    upgrade(url)
    store = open_store(url)
    engine = Engine(store)
    try:
        service = FleetService(store, connect_host)
        service.add_host(ADMIN, "gpu01", f"ssh://fleet@127.0.0.1:{lab.emulator.port}")
        add_image(store, path=f"{IMAGES}/{desktop.NAME}")
        engine.start()
        add_pool(store, names="desk-{}", maximum=2, spare=2, logon="domain", connect=[22], vm=VM)
        yield Fleet(lab, store, service)
    finally:
        engine.stop()
        store.close()


@pytest.mark.deadline(2400)
def test_each_of_two_users_has_a_desktop_that_lets_nobody_else_in(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fleet_of(lab, tmp_path, monkeypatch) as fleet:
        fleet.until(lambda: fleet.phases() == ["ready", "ready"], "two spares")
        for user in USERS:
            person = FleetCaller(user, None, CallerKind.PERSON, {"office": Right.USE})
            fleet.service.take_desktop(person, "office")
        fleet.until(lambda: all(one.address for one in fleet.desktops()), "addresses")
        leases = fleet.leases()
        for user, other in zip(USERS, reversed(USERS), strict=True):
            own = fleet.of(user)
            assert own.address == leases[own.mac]
            assert own.address in ask_guest(lab, own.name, "ip -4 -brief address show eth0")
            assert A100 in guest_devices(lab, own.name)
            assert _logs_on(lab, own.name, user)
            assert not _logs_on(lab, own.name, other), f"it is {user}'s"
            fleet.until(lambda user=user: fleet.seen_users(user) == (user,), "the log-on, as the helper saw it")
        assert len({fleet.of(user).address for user in USERS}) == len(USERS)


def _logs_on(lab: Lab, name: str, user: str) -> bool:
    """Begin a session in a guest; return whether PAM allowed it."""
    question = f"{LOG_ON.format(user=user)}; systemctl is-active desk-{user}"
    return "active" in ask_guest(lab, name, question).split()
