# SPDX-License-Identifier: Apache-2.0
"""The seed that cloud-init reads, as another reader of ISO images sees it."""

from __future__ import annotations

import io
import json

import pytest
from pycdlib import PyCdlib

from vgpuctl.domain.cloud_init_seed import build_seed_image, hostname_of_vm, read_setup, with_setup
from vgpuctl.domain.guest_setup import setup_script
from vgpuctl.model.guest_sharing import GuestSharing, SharingMethod
from vgpuctl.model.license import License
from vgpuctl.model.request import CloudInit, CloudInitFile, GuestSetup

TEXT = "#cloud-config\npassword: pässword\n"


def files(image: bytes, names: tuple[str, ...] = ("user-data", "meta-data"), **how: str) -> dict[str, bytes]:
    """Return the files of an image, by one of its two trees of long names."""
    disc = PyCdlib()
    disc.open_fp(io.BytesIO(image))
    result = {}
    for name in names:
        data = io.BytesIO()
        disc.get_file_from_iso_fp(data, **{next(iter(how)): f"/{name}"})
        result[name] = data.getvalue()
    disc.close()
    return result


@pytest.mark.parametrize("tree", ["rr_path", "joliet_path"])
def test_both_files_have_the_form_of_cloud_init(tree):
    result = files(build_seed_image(CloudInit(CloudInitFile("/ud", TEXT)), "some-id", "vdi-001"), **{tree: ""})
    assert result["user-data"].decode() == TEXT
    assert json.loads(result["meta-data"]) == {"instance-id": "some-id", "local-hostname": "vdi-001"}


@pytest.mark.parametrize("tree", ["rr_path", "joliet_path"])
def test_a_network_config_alone_comes_with_empty_user_data(tree):
    config = "version: 2\nethernets: {lan: {dhcp4: true}}\n"
    image = build_seed_image(CloudInit(network_config=CloudInitFile("/nc", config)), "some-id", "vdi-001")
    result = files(image, ("user-data", "meta-data", "network-config"), **{tree: ""})
    assert result["network-config"].decode() == config
    assert result["user-data"] == b"#cloud-config\n"


def test_the_volume_is_named_cidata():
    image = build_seed_image(CloudInit(CloudInitFile("/ud", TEXT)), "some-id", "vdi-001")
    assert image[0x8001:0x8006] == b"CD001"
    assert image[0x8028:0x8048].rstrip() == b"cidata"


@pytest.mark.parametrize(
    ("name", "host"),
    [("vdi-001", "vdi-001"), ("a_b", "a-b"), ("a__", "a"), ("web.example.org", "web.example.org"), ("a-.-._b", "a.b")],
)
def test_a_vms_name_becomes_a_host_name(name, host):
    assert hostname_of_vm(name) == host


NETWORK = "version: 2\nethernets: {lan: {dhcp4: true}}\n"
SHARING = GuestSetup(guest_sharing=GuestSharing(SharingMethod.MPS))


@pytest.mark.parametrize("network", [None, CloudInitFile("/nc", NETWORK)])
def test_the_script_of_a_seed_changes_and_nothing_else(network):
    user = CloudInit(CloudInitFile("/ud", TEXT), network)
    first = build_seed_image(user, "some-id", "vdi-001")
    assert read_setup(first) is None
    shared = with_setup(first, SHARING)
    assert read_setup(shared) == setup_script(SHARING)
    licensed = with_setup(shared, GuestSetup(license=License("cad", "a.b." + "c" * 60_000)))
    last = with_setup(licensed, GuestSetup())
    assert read_setup(last) == setup_script(GuestSetup(), replaces=True)
    assert b"c" * 99 not in last
    names = ("user-data", "meta-data", *(["network-config"] if network else []))
    assert all(files(one, names, rr_path="") == files(first, names, rr_path="") for one in (shared, licensed, last))
    assert {len(one) for one in (first, shared, licensed, last)} == {1 << 20}


@pytest.mark.parametrize("image", [b"", b"x" * 100_000, build_seed_image(CloudInit(), "a", "b")[:40_000]])
def test_what_is_no_seed_is_refused(image):
    with pytest.raises(ValueError, match="it is no seed of vgpuctl's, or damaged"):
        read_setup(image)


def test_a_script_that_does_not_fit_is_refused():
    image = build_seed_image(CloudInit(), "a", "b")
    with pytest.raises(ValueError, match="it has 1048576 bytes and needs "):
        with_setup(image, GuestSetup(license=License("cad", "c" * 2_000_000)))
