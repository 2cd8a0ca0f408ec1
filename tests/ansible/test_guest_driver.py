# SPDX-License-Identifier: Apache-2.0
"""The role guest_driver on a bare Debian over SSH: real sshd and apt; stand-ins for systemd and NVIDIA's package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ansible.bare import Bare
from tests.ansible.debs import write_deb
from tests.ansible.stand_ins import GUEST_DRIVER, HARDWARE, VERSION

pytestmark = pytest.mark.long
TOKEN = "client_configuration_token_01-02-2027-03-04-05.tok"
SECRET = "eyJhbGciOiJSUzI1NiJ9.c2VjcmV0"


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Bare]:
    host = Bare(tmp_path, HARDWARE)
    yield host
    host.close()


def test_a_guest_gets_its_driver_and_licence_once_and_the_token_is_never_shown(guest: Bare) -> None:
    driver = write_deb(guest.root / "srv", "nvidia-linux-grid-550", GUEST_DRIVER, VERSION, "amd64")
    token = guest.place / TOKEN
    token.write_text(SECRET)
    play = guest.place / "guest.yml"
    roles = [{"role": "vgpuctl.vgpuctl.guest_driver"}]
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "roles": roles}]))
    variables = {
        "gpu_driver_url": f"file:///srv/{driver.name}",
        "gpu_driver_sha256": hashlib.sha256(driver.read_bytes()).hexdigest(),
        "guest_driver_gridd": {"LicenseInterval": 1440},
        "guest_driver_licence_deadline_seconds": 1,
        "guest_driver_seconds_between": 1,
    }

    before = guest.layer()
    checked = guest.playbook(play, "--check", "--diff", **variables, guest_driver_token=str(token))
    assert checked.status == 0, checked.output
    assert guest.layer() == before

    unlicensed = guest.playbook(play, **variables)
    (failed,) = unlicensed.failed
    assert "nvidia-smi -q shows License Status: Unlicensed (Unrestricted) after 1 s" in failed.result["msg"]

    first = guest.playbook(play, "--diff", "-vvv", **variables, guest_driver_token=str(token))
    assert first.status == 0, first.output
    assert guest.text("/etc/nvidia/gridd.conf") == "# Written by Ansible.\nFeatureType=1\nLicenseInterval=1440\n"
    installed = guest.root / "etc/nvidia/ClientConfigToken" / TOKEN
    assert (oct(installed.stat().st_mode & 0o7777), oct(installed.parent.stat().st_mode & 0o7777)) == ("0o744", "0o755")
    assert installed.read_text() == SECRET
    assert SECRET not in checked.output + first.output
    assert guest.text("/fake/done").split("\n").count("reboot") == 1

    again = guest.playbook(play, **variables, guest_driver_token=str(token))
    assert (again.status, again.changed) == (0, []), again.output
