# SPDX-License-Identifier: Apache-2.0
"""What a guest with Windows gets: an answer file, read as XML, and a script, read by a grammar. Nothing runs it."""

from __future__ import annotations

import hashlib
import io
import re
from itertools import product

import pytest
from lxml import etree
from pycdlib import PyCdlib

from tests.domain_joins import blob_text
from tests.guests import powershell
from vgpuctl.domain.answer_file import MAX_COMMAND, build_answer_file, read_blob, register_command
from vgpuctl.domain.cloud_init_seed import build_seed_image, has_setup, read_setup, with_setup
from vgpuctl.domain.guest_setup import secrets_in, setup_script
from vgpuctl.model.domain_join import DomainJoin
from vgpuctl.model.license import License
from vgpuctl.model.request import CloudInit, CloudInitFile, GuestSetup

DRIVER = "/srv/o'neil/582.53_grid_win10_win11_server2022_server2025_dch_64bit_international.exe"
LICENSE = License("cad", "a.b.secret", certificates=("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",))
BLOB = blob_text()
JOIN = DomainJoin("corp", BLOB)
NS = {"u": "urn:schemas-microsoft-com:unattend"}


def windows(**parts: object) -> GuestSetup:
    """Return what is set up in a guest with Windows."""
    return GuestSetup(**parts, for_windows=True)


EVERYTHING = windows(license=LICENSE, guest_driver=DRIVER, guest_helper=True)


def names(image: bytes) -> set[str]:
    """Return the files of a seed as Windows sees them."""
    disc = PyCdlib()
    disc.open_fp(io.BytesIO(image))
    return {child.file_identifier().decode("utf-16_be") for child in disc.list_children(joliet_path="/")} - {".", ".."}


@pytest.mark.parametrize(
    ("license", "driver", "helper"),
    list(product((None, LICENSE, License("ws", "a.b.c", feature=2)), (None, DRIVER), (False, True)))[1:],
)
@pytest.mark.parametrize("unread", [False, True])
def test_every_script_is_powershell_of_5_1(license, driver, helper, unread):
    setup = windows(license=license, guest_driver=driver, guest_helper=helper)
    text = setup_script(setup, unread=unread)
    assert (powershell.problems(text), powershell.unknown_and_unused(text)) == ([], (set(), set()))
    assert text.isascii(), "Windows PowerShell reads a script without a byte order mark in the system's code page"
    assert secrets_in(text) == ({"license"} if license else frozenset())
    assert ("GridLicensing" in text) is (license is not None and license.feature == 2)
    assert "o'neil" not in text, "a quote of a path would end a string of the script"


@pytest.mark.parametrize("stays_on", [False, True])
def test_a_guest_that_joins_a_domain_takes_the_secret_off_its_disk(stays_on):
    text = setup_script(windows(domain_join=JOIN, guest_helper=True, off_after_setup=not stays_on))
    assert (powershell.problems(text), powershell.unknown_and_unused(text)) == ([], (set(), set()))
    assert (BLOB in text, secrets_in(text)) == (False, {"domain_join"})
    assert ("DisablePasswordChange" in text) is not stays_on
    pattern = re.search(r"-replace '(<AccountData>.*?)', '(.*?)'", text)
    assert re.sub(pattern[1], pattern[2], build_answer_file(BLOB)).count(BLOB) == 0
    without = setup_script(windows(domain_join=DomainJoin("corp"), guest_helper=True))
    assert (secrets_in(without), "Complete-DomainJoin" in without) == (frozenset(), False)


def test_the_answer_file_has_the_blob_once_and_nothing_of_it_without_one():
    root = etree.fromstring(build_answer_file(BLOB).encode())
    names = [one.get("name") for one in root.iterfind("u:settings[@pass='specialize']/u:component", NS)]
    assert names == ["Microsoft-Windows-UnattendedJoin", "Microsoft-Windows-Deployment"]
    (data,) = root.iterfind("u:settings/u:component[1]/u:Identification/u:Provisioning/u:AccountData", NS)
    assert (data.text, len(root.findall(".//u:AccountData", NS)), len(root.findall("u:settings", NS))) == (BLOB, 1, 1)
    assert (read_blob(build_answer_file(BLOB)), read_blob(build_answer_file())) == (BLOB, "")
    assert "UnattendedJoin" not in build_answer_file()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<unattend",
        '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><x>&a;',
        "<a>" * 400 + "\0",
    ],
)
def test_what_is_no_answer_file_is_an_error_without_its_text(text):
    with pytest.raises(ValueError, match="its answer file is no XML") as raised:
        read_blob(text)
    assert raised.value.__context__ is None


def test_an_entity_of_an_answer_file_is_not_read(tmp_path):
    path = tmp_path / "secret"
    path.write_text("secret")
    text = build_answer_file(BLOB).replace(BLOB, "&a;").partition("?>")[2]
    assert read_blob(f'<!DOCTYPE x [<!ENTITY a SYSTEM "{path.as_uri()}">]>{text}') == ""


def test_a_seed_keeps_its_blob_until_it_is_taken_out_or_replaced():
    image = build_seed_image(CloudInit(setup=windows(domain_join=JOIN)), "some-id", "w1")
    blobless = windows(domain_join=DomainJoin("corp"), guest_helper=True)
    kept = with_setup(image, blobless)
    assert (BLOB.encode() in kept, has_setup(kept, blobless), has_setup(image, blobless)) == (True, True, False)
    cleared = with_setup(kept, windows(guest_helper=True))
    assert (BLOB.encode() in cleared, has_setup(cleared, blobless)) == (False, False)
    assert with_setup(cleared, blobless).count(b"AccountData") == 0
    other = with_setup(kept, windows(domain_join=DomainJoin("corp", blob_text(2))))
    assert (BLOB.encode() in other, blob_text(2).encode() in other) == (False, True)


def test_the_grammar_sees_a_part_that_is_missing():
    text = setup_script(EVERYTHING)
    assert powershell.problems(text.replace("function Install-Driver {", "function Install-Driver {{"))
    assert powershell.unknown_and_unused(text.replace("{ Set-License }", "{ Set-Licence }")) == (
        {"Set-Licence"},
        {"Set-License"},
    )


def test_the_answer_file_runs_the_script_before_the_first_log_on():
    root = etree.fromstring(build_answer_file().encode())
    (component,) = root.iterfind("u:settings[@pass='specialize']/u:component", NS)
    assert component.get("name") == "Microsoft-Windows-Deployment"
    (command,) = component.iterfind("u:RunSynchronous/u:RunSynchronousCommand", NS)
    assert command.get("{http://schemas.microsoft.com/WMIConfig/2002/State}action") == "add"
    assert command.findtext("u:Order", namespaces=NS) == "1"
    text = command.findtext("u:Path", namespaces=NS)
    assert (text, len(text) <= MAX_COMMAND) == (register_command(), True)
    script = re.search(r"%d:\\(\S+) register", text)[1]
    assert script in names(build_seed_image(CloudInit(setup=EVERYTHING), "id", "w"))
    assert "register" in powershell_actions(setup_script(EVERYTHING))


def powershell_actions(text: str) -> list[str]:
    """Return the words that a script takes as its action."""
    return re.findall(r"'(\w+)'", re.search(r"ValidateSet\(([^)]*)\)", text)[1])


def test_the_seed_has_the_files_and_takes_them_back():
    user = CloudInitFile("/ud", "#cloud-config\n")
    first = build_seed_image(CloudInit(user, setup=EVERYTHING), "some-id", "w")
    theirs = {"user-data", "meta-data"}
    assert names(first) == theirs | {"Unattend.xml", "vgpuctl-setup.ps1", "vgpuctl-guest.ps1"}
    assert read_setup(first) == setup_script(EVERYTHING)
    cleared = with_setup(first, windows(guest_driver=DRIVER))
    assert names(cleared) == theirs | {"Unattend.xml", "vgpuctl-setup.ps1"}
    assert (b"a.b.secret" in first, b"a.b.secret" in cleared) == (True, False)
    assert names(with_setup(build_seed_image(CloudInit(user), "id", "w"), windows())) == theirs


def test_the_script_knows_the_helper_that_it_installs():
    image = build_seed_image(CloudInit(setup=EVERYTHING), "some-id", "w")
    disc, helper = PyCdlib(), io.BytesIO()
    disc.open_fp(io.BytesIO(image))
    disc.get_file_from_iso_fp(helper, joliet_path="/vgpuctl-guest.ps1")
    assert hashlib.sha256(helper.getvalue()).hexdigest() in setup_script(EVERYTHING)
