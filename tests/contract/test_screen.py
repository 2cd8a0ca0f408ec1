# SPDX-License-Identifier: Apache-2.0
"""The screens of domains without an operating system: QEMU answers as a VNC server does."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.contract.site import Site, libvirt_refuses, new_uuid
from tests.contract.test_libvirt import DOMAIN

pytestmark = pytest.mark.forms("vendor-vf")
DEVICES = "<video><model type='vga'/></video><graphics type='vnc' port='-1' autoport='yes' passwd='secret'/>"
END_SECONDS = 30.0


@pytest.fixture
def uuid(site: Site) -> Iterator[str]:
    """A running domain with a screen that has a password; the fixture removes it afterwards."""
    made = new_uuid()
    site.ports.hypervisor.define(DOMAIN.format(name=f"screen-{made[:8]}", uuid=made, devices=DEVICES, cpu=""))
    site.ports.hypervisor.start(made)
    yield made
    site.ports.hypervisor.destroy(made)
    site.ports.hypervisor.undefine(made)


def sign_in(screen: socket.socket) -> bytes:
    """Sign in without a password; return the width and the height of the screen."""
    screen.settimeout(END_SECONDS)
    with screen.makefile("rb") as answers:
        assert answers.read(12) == b"RFB 003.008\n"
        screen.sendall(b"RFB 003.008\n")
        ways = answers.read(answers.read(1)[0])
        assert 1 in ways, f"no way to sign in without a password: {ways!r}"
        screen.sendall(b"\x01")
        assert answers.read(4) == bytes(4)
        screen.sendall(b"\x01")
        return answers.read(4)


def test_a_screen_needs_no_password(site: Site, uuid: str) -> None:
    for _ in range(2):
        with site.ports.hypervisor.open_graphics(uuid, 0) as screen:
            assert len(sign_in(screen)) == 4


def test_it_ends_with_the_domain(site: Site, uuid: str) -> None:
    with site.ports.hypervisor.open_graphics(uuid, 0) as screen:
        sign_in(screen)
        site.ports.hypervisor.destroy(uuid)
        while screen.recv(4096):
            continue


def test_there_is_no_other_screen_and_none_of_a_domain_that_is_off(site: Site, uuid: str) -> None:
    with libvirt_refuses(1):
        site.ports.hypervisor.open_graphics(uuid, 1)
    site.ports.hypervisor.destroy(uuid)
    with libvirt_refuses(55):
        site.ports.hypervisor.open_graphics(uuid, 0)
    with libvirt_refuses(42):
        site.ports.hypervisor.open_graphics(new_uuid(), 0)
