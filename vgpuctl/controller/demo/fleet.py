# SPDX-License-Identifier: Apache-2.0
"""The demonstration's fleet: its hosts, two images and a pool; and a controller with it that people can ask."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Iterable
from typing import Any

from vgpuctl.controller import main
from vgpuctl.controller.database.store import Store, open_store, upgrade
from vgpuctl.controller.demo.hosts import IMAGES, PROFILE, DemoHost, demo_hosts
from vgpuctl.controller.engine import connect_host
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.main import Listen
from vgpuctl.controller.model import FleetCaller, Role
from vgpuctl.model.controller_service import DATABASE_FILE, URL_VARIABLE

CALLER = FleetCaller("demo", Role.ADMIN)
POOL, FIRST_IMAGE, SECOND_IMAGE = "office", "office-1", "office-2"
SPEC: dict[str, Any] = {
    "kind": "floating", "image": FIRST_IMAGE, "names": "office-{:02}", "maximum": 6, "spare": 2, "profile": PROFILE,
    "placement": "spread", "max_unavailable": 2,
}  # fmt: skip


def add_fleet(store: Store, hosts: Iterable[DemoHost], **more: object) -> FleetService:
    """Add the hosts, the images and the pool, whose spec has `more`; return the controller's calls."""
    service = FleetService(store, connect_host)
    for host in hosts:
        service.add_host(CALLER, host.name, host.address)
    for name, path in zip((FIRST_IMAGE, SECOND_IMAGE), IMAGES, strict=True):
        service.ensure_image(CALLER, name, path)
    service.ensure_pool(CALLER, POOL, {**SPEC, **more})
    return service


def add_people(service: FleetService) -> dict[str, str]:
    """Add an admin, and ada, who may use the pool; return their passwords."""
    passwords = {}
    for name, right, pool in (("admin", "admin", None), ("ada", "use", POOL)):
        service.ensure_person(CALLER, name)
        passwords[name] = service.set_password(CALLER, name).data.password or ""
        service.entitle(CALLER, name, right, pool)
    return passwords


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def run_live(tell: Callable[[str], None]) -> None:
    """Run a controller with four hosts until SIGTERM or Ctrl-C; then nothing of them is left.

    Raises:
        VgpuctlError: a host or the controller cannot begin.
    """
    with demo_hosts() as (directory, hosts):
        url = f"sqlite:///{directory / DATABASE_FILE}"
        upgrade(url)
        store = open_store(url)
        try:
            opening = {"open": "rdp", "connect": [3389], "console": True}
            passwords = add_people(add_fleet(store, hosts.values(), **opening))
        finally:
            store.close()
        own_socket = f"{directory}/controller.sock"
        address = shlex.quote(next(iter(hosts.values())).address)
        listen = Listen("127.0.0.1", _free_port())
        tell(f"""Four simulated hosts and a controller run until Ctrl-C. In a browser:

  http://{listen.address}:{listen.port}/
  sign in as admin with {passwords["admin"]} to see the fleet, as ada with {passwords["ada"]} to take a desktop

In another terminal:

  export {URL_VARIABLE}={shlex.quote(own_socket)}
  vgpuctl controller list-hosts
  vgpuctl controller list-desktops
  vgpuctl controller assign {POOL} ada            # again: her address
  vgpuctl controller release {POOL}-01 --yes      # it is refreshed for the next user
  vgpuctl controller drain-host gpu02
  vgpuctl controller list-events
  vgpuctl controller doctor --state {shlex.quote(str(directory))} --socket {shlex.quote(own_socket)}
  vgpuctl --host {address} list-vms
""")
        main.run(database=None, state=str(directory), path=own_socket, listen=listen)
