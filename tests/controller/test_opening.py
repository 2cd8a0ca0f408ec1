# SPDX-License-Identifier: Apache-2.0
"""How a user opens his desktop: by an RDP file, which may be signed, or by a link; at an address that its host sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import RunningAgent
from tests.controller.conftest import IMAGE, SPEC, wait_until
from tests.controller.controllers import Controller, running_controller
from tests.controller.test_portal import PASSWORD, Browser, signed_in
from tests.rdp_reader import read_rdp
from tests.unit.controller.test_rdp_signing import make_certificate, verified

LINK = "https://gw.example.org/?host={address}&user={user}&name={name}"


@pytest.fixture
def controller(tmp_path: Path, agent: RunningAgent) -> Iterator[Controller]:
    with running_controller(tmp_path / "controller") as one:
        password = tmp_path / "password"
        password.write_text(PASSWORD)
        for name in ("ada", "eve"):
            assert one.run("ensure-person", name).returncode == 0
            assert one.run("set-password", name, "--password-file", str(password)).returncode == 0
        assert one.run("add-host", "gpu01", f"agent:{agent.path}").returncode == 0
        assert one.run("ensure-image", "office", "--path", IMAGE).returncode == 0
        yield one


def ensure_pool(controller: Controller, directory: Path, **keys: object) -> None:
    spec = directory / "office.json"
    spec.write_text(json.dumps({**SPEC, "maximum": 2, **keys}))
    done = controller.run("ensure-pool", "office", "-f", str(spec))
    assert done.returncode == 0, done.stderr


def with_a_desktop(controller: Controller, name: str = "ada") -> Browser:
    """Return somebody's browser, with a desktop that can be opened."""
    assert controller.run("entitle", "everybody", "use", "--pool", "office").returncode == 0
    wait_until(lambda: controller.data("show-pool", "office")["ready"] > 0, "a desktop")
    browser = signed_in(controller, name)
    browser.open("/my")
    browser.press("Take a desktop office")
    wait_until(lambda: controller.data("list-desktops", "--user", name)[0]["address"] is not None, "its address")
    browser.open("/my")
    return browser


def test_the_rdp_file_of_ones_own_desktop(controller: Controller, tmp_path: Path) -> None:
    ensure_pool(controller, tmp_path, open="rdp", rdp={"use multimon": 1}, addresses=["192.168.122.0/24"])
    ada = with_a_desktop(controller)
    (link,) = ada.page.xpath("//a[normalize-space()='Open office-001']/@href")
    text = controller.request("GET", link, Cookie=ada.asking["Cookie"])
    values = read_rdp(text[1]["text"])
    desktop = controller.data("show-desktop", "office-001")
    assert (values["full address"], values["username"], values["use multimon"]) == (desktop["address"], "ada", 1)
    assert text[2]["Content-Type"] == "application/x-rdp"
    assert text[2]["Content-Disposition"] == 'attachment; filename="office-001.rdp"'
    assert text[2]["Cache-Control"] == "no-store"
    printed = controller.run("open-desktop", "office-001")
    assert (read_rdp(printed.stdout.replace("\n", "\r\n")), printed.returncode) == (values, 0)
    opened = [one for one in controller.data("list-events") if one["kind"] == "desktop-opened"]
    assert [(one["user"], one["text"]) for one in opened] == [("ada", "office-001, which ada has")], "not her own"
    eve = signed_in(controller, "eve")
    eve.open(link)
    assert (eve.status, "there is no desktop office-001" in eve.text) == (404, True)
    ada.open("/my/open?name=office-009")
    assert ada.status == 404
    assert controller.run("release", "office-001", "--yes").returncode == 0
    ada.open(link)
    assert (ada.status, "there is no desktop office-001" in ada.text) == (404, True)


def test_a_file_is_signed_where_a_certificate_is_given(controller: Controller, tmp_path: Path) -> None:
    signer = make_certificate(tmp_path, "desktops.example.org")
    words = ("--rdp-certificate", signer.certificate_file, "--rdp-key", signer.key_file)
    alone = controller.run("run", *words[:2])
    assert (alone.returncode, "belong together" in alone.stderr) == (2, True)
    wrong = controller.run("run", *words[:3], str(tmp_path / "none"))
    assert (wrong.returncode, "RDP files cannot be signed" in wrong.stderr) == (1, True), wrong.stderr
    controller.stop()
    controller.start("--listen", f"127.0.0.1:{controller.port}", *words)
    ensure_pool(controller, tmp_path, open="rdp")
    with_a_desktop(controller)
    text = controller.data("open-desktop", "office-001")["file"]
    assert verified(text, signer.certificate_file, tmp_path)
    Path(signer.key_file).rename(tmp_path / "elsewhere")
    failed = controller.run("open-desktop", "office-001")
    assert (failed.returncode, "cannot be signed just now" in failed.stderr) == (75, True)
    assert str(tmp_path) not in failed.stderr


def test_a_link(controller: Controller, tmp_path: Path) -> None:
    ensure_pool(controller, tmp_path, open=LINK)
    ada = with_a_desktop(controller)
    address = controller.data("show-desktop", "office-001")["address"]
    expected = f"https://gw.example.org/?host={address}&user=ada&name=office-001"
    assert ada.page.xpath("//a[normalize-space()='Open office-001']/@href") == [expected]
    assert controller.run("open-desktop", "office-001").stdout == f"{expected}\n"


def test_a_name_of_the_dns_is_the_address(controller: Controller, tmp_path: Path) -> None:
    ensure_pool(controller, tmp_path, open="rdp", dns_name="{name}.vdi.example.org")
    with_a_desktop(controller)
    values = read_rdp(controller.data("open-desktop", "office-001")["file"])
    assert values["full address"] == "office-001.vdi.example.org"


def test_an_address_outside_the_pools_ranges_is_shown_to_nobody(controller: Controller, tmp_path: Path) -> None:
    ensure_pool(controller, tmp_path, open="rdp", addresses=["10.20.0.0/16"])
    wait_until(lambda: controller.data("show-pool", "office")["ready"] > 0, "a desktop")
    assert controller.run("assign", "office", "ada").returncode == 0
    wait_until(lambda: controller.data("show-desktop", "office-001")["phase"] == "assigned", "its host's answer")
    assert controller.data("show-desktop", "office-001")["address"] is None
    refused = controller.run("open-desktop", "office-001")
    assert (refused.returncode, "has no address to open yet" in refused.stderr) == (75, True)


def test_a_pool_that_does_not_say_how(controller: Controller, tmp_path: Path) -> None:
    ensure_pool(controller, tmp_path)
    ada = with_a_desktop(controller)
    assert ada.page.xpath("//a[normalize-space()='Open office-001']") == []
    refused = controller.run("open-desktop", "office-001")
    assert (refused.returncode, "does not say how" in refused.stderr, "open: rdp" in refused.stderr) == (3, True, True)
