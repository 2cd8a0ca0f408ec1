# SPDX-License-Identifier: Apache-2.0
"""What a host signs with its SSH key: by each kind of key, and nothing else counts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, open_sim_host
from vgpuctl.errors import HostCannot
from vgpuctl.model.results.migration import MigrationReasonResult, SentVmResult
from vgpuctl.operations.host_signature import KEY_FILES, find_signer, sign
from vgpuctl.value import replace

SENT = SentVmResult("vdi", "4b20d080-1b54-4048-85b3-a6a62d165c01", 1.5)


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return open_sim_host(tmp_path)


def make_key(host: SimulatedHost, path: str, kind: str, passphrase: str = "") -> str:
    """Make a host's key as OpenSSH does; return its fingerprint."""
    file = host.directory / "state" / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    argv = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", file]
    subprocess.run(argv, check=True)
    shown = subprocess.run(["ssh-keygen", "-lf", file], capture_output=True, text=True, check=True).stdout
    return shown.split()[1]


@pytest.mark.parametrize(("kind", "path"), [(kind, path) for kind in ("ed25519", "ecdsa", "rsa") for path in KEY_FILES])
def test_any_key_of_a_host_signs_under_its_fingerprint(host: SimulatedHost, kind: str, path: str) -> None:
    made = make_key(host, KEY_FILES[0], kind) if path == KEY_FILES[0] else None
    if made is None:
        (host.directory / "state/etc/ssh").mkdir(parents=True)
        (host.directory / "state" / KEY_FILES[0].lstrip("/")).write_text("damaged")
        made = make_key(host, path, kind)
    assert find_signer(SENT, sign(host.ports, SENT)) == made


def test_another_value_or_another_kind_of_value_is_not_signed(host: SimulatedHost) -> None:
    signature = sign(host.ports, SENT)
    assert find_signer(SENT, signature) is not None
    assert find_signer(replace(SENT, name="vdi-2"), signature) is None
    assert find_signer(MigrationReasonResult("vdi", "x"), signature) is None


@pytest.mark.parametrize(
    "change", [None, "", "x", "ssh-ed25519 AAAA AAAA", "ssh-ed25519 {key}", "{type} {key} AAAA", "a b c"]
)
def test_what_is_no_signature_is_signed_by_nobody(host: SimulatedHost, change: str | None) -> None:
    kind, key, _ = sign(host.ports, SENT).split(" ")
    assert find_signer(SENT, change and change.format(type=kind, key=key)) is None


@pytest.mark.parametrize("between", ["\t", " ", "\x0b", "\u00a0", "\n"])
def test_a_signature_by_another_key_than_the_named_one_counts_for_nothing(
    host: SimulatedHost, tmp_path: Path, between: str
) -> None:
    """A key's text may have a comment: nothing in it may be taken for the key that is pinned."""
    pinned = sign(host.ports, SENT).split(" ")[1]
    other = open_sim_host(tmp_path / "other")
    kind, key, signed = sign(other.ports, SENT).split(" ")
    assert key != pinned
    assert find_signer(SENT, f"{kind}{between}{key} {pinned} {signed}") is None
    assert find_signer(SENT, f"{kind} {pinned}{between}{key} {signed}") is None


def test_a_host_without_a_key_says_how_it_gets_one(host: SimulatedHost) -> None:
    make_key(host, KEY_FILES[0], "ed25519", passphrase="a passphrase")
    with pytest.raises(
        HostCannot, match=r"no SSH key to sign with: /etc/ssh/ssh_host_ed25519_key: .*; .*_rsa_key: "
    ) as e:
        sign(host.ports, SENT)
    assert e.value.hint == "ssh-keygen -A makes those that are missing"
