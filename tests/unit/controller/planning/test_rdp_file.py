# SPDX-License-Identifier: Apache-2.0
"""RDP files: what is in them, and that no value of a pool brings in more than its key."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rdp_reader import read_rdp
from vgpuctl.controller.planning.desktop_address import choose_address, fill_link
from vgpuctl.controller.planning.rdp_file import DEFAULTS, KEYS, check_rdp_key, full_address, rdp_lines, rdp_text

GIVES_AWAY = (
    "redirectclipboard", "redirectprinters", "redirectsmartcards", "redirectcomports", "redirectwebauthn",
    "redirectlocation", "drivestoredirect", "usbdevicestoredirect", "camerastoredirect", "devicestoredirect",
    "audiocapturemode",
)  # fmt: skip


def test_a_file_gives_nothing_of_the_users_computer_away() -> None:
    values = read_rdp(rdp_text(rdp_lines({}, "10.20.0.7", 3389, "ada@example.org")))
    assert (values["full address"], values["username"]) == ("10.20.0.7", "ada@example.org")
    assert values["alternate full address"] == values["full address"]
    assert {name: values[name] for name in GIVES_AWAY} == {
        name: "" if name.endswith("storedirect") else 0 for name in GIVES_AWAY
    }
    assert (values["authentication level"], values["enablecredsspsupport"]) == (2, 1)
    assert "gatewayusagemethod" not in values


def test_a_pools_keys_count_and_a_gateway_is_always_used() -> None:
    keys = {"redirectclipboard": 1, "gatewayhostname": "gw.example.org", "use multimon": 1}
    values = read_rdp(rdp_text(rdp_lines(keys, "2001:db8::7", 3390, "ada")))
    assert values["full address"] == "[2001:db8::7]:3390"
    assert {name: values[name] for name in keys} == keys
    assert (values["gatewayusagemethod"], values["gatewayprofileusagemethod"]) == (1, 1)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("alternate shell", "cmd.exe", "starts a program"),
        ("remoteapplicationprogram", "||calc", "starts a program"),
        ("shell working directory", "C:\\", "starts a program"),
        ("full address", "evil.example", "the controller sets this key"),
        ("signature", "x", "the controller sets this key"),
        ("Redirectclipboard", 1, "not one of the keys"),
        ("redirectclipboard:i:1\r\nalternate shell", 1, "not one of the keys"),
        ("redirectclipboard", 2, "2: one of 0, 1"),
        ("redirectclipboard", True, "True: one of 0, 1"),
        ("authentication level", 0, "0: one of 1, 2"),
        ("desktopwidth", 100, "100: one of 200 to 8192"),
        ("domain", "EXAMPLE\r\nalternate shell:s:cmd", "the name of a domain"),
        ("drivestoredirect", "*\nalternate shell:s:cmd", "ASCII characters in one line"),
        ("drivestoredirect", "é", "ASCII characters in one line"),
        ("gatewayhostname", "gw.example.org,evil.example", "a host name"),
        ("gatewayhostname", ["gw"], "a host name"),
        ("selectedmonitors", "0;1", "the numbers of screens"),
    ],
)
def test_what_a_pool_may_not_set(name: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_rdp_key(name, value)


@given(
    st.dictionaries(st.sampled_from(sorted(KEYS)), st.one_of(st.integers(), st.text(), st.booleans(), st.none())),
    st.text("abcxyz0123456789.@_-", min_size=1, max_size=20),
)
def test_no_value_that_is_let_through_brings_another_key(given_keys: dict[str, object], user: str) -> None:
    keys = {}
    for name, value in given_keys.items():
        with contextlib.suppress(ValueError):
            keys[name] = check_rdp_key(name, value)
    values = read_rdp(rdp_text(rdp_lines(keys, "10.0.0.1", 3389, user)))
    own = {"full address", "alternate full address", "username"}
    gateway = {"gatewayusagemethod", "gatewayprofileusagemethod"} if "gatewayhostname" in keys else set()
    assert values.keys() == own | DEFAULTS.keys() | keys.keys() | gateway
    assert {name: values[name] for name in keys} == keys


def test_a_line_that_was_not_checked_is_refused() -> None:
    with pytest.raises(ValueError, match="not one line"):
        rdp_lines({"domain": "x\r\nalternate shell:s:cmd"}, "10.0.0.1", 3389, "ada")
    with pytest.raises(ValueError, match="not one line"):
        rdp_lines({}, "10.0.0.1", 3389, "ada\r\nalternate shell:s:cmd")


@pytest.mark.parametrize(
    ("address", "port", "text"),
    [("10.0.0.1", 3389, "10.0.0.1"), ("office-001.vdi.example.org", 3390, "office-001.vdi.example.org:3390"),
     ("2001:db8::1", 3389, "[2001:db8::1]")],
)  # fmt: skip
def test_addresses_of_servers(address: str, port: int, text: str) -> None:
    assert full_address(address, port) == text


def test_a_link_has_its_values_encoded() -> None:
    template = "https://gw.example.org/?host={address}&user={user}#{name}"
    assert fill_link(template, "10.0.0.1", "a&b=c d", "office-001") == (
        "https://gw.example.org/?host=10.0.0.1&user=a%26b%3Dc%20d#office-001"
    )
    assert fill_link("moonlight://{address}", "2001:db8::1", "ada", "x") == "moonlight://[2001:db8::1]"


@pytest.mark.parametrize(
    ("ranges", "of_hosts", "of_leases", "chosen", "words"),
    [
        ((), frozenset(), True, "10.20.0.7", None),
        (("10.21.0.0/16", "2001:db8::/64"), frozenset(), True, "2001:db8::7", None),
        (("10.22.0.0/16",), frozenset(), True, None, "10.20.0.7, 2001:db8::7: not in the pool's addresses"),
        ((), frozenset({"10.20.0.7"}), True, "2001:db8::7", None),
        ((), frozenset({"10.20.0.7", "2001:db8::7"}), True, None, "10.20.0.7, 2001:db8::7: a host's"),
        ((), frozenset(), False, None, "several addresses for it: 10.20.0.7, 2001:db8::7; use addresses or dns_name"),
        (("10.0.0.0/8",), frozenset(), False, "10.20.0.7", None),
    ],
)
def test_the_address_is_in_the_pools_ranges_and_no_hosts(
    ranges: tuple[str, ...], of_hosts: frozenset[str], of_leases: bool, chosen: str | None, words: str | None
) -> None:
    result = choose_address(["10.20.0.7", "2001:db8::7"], ranges, of_hosts, of_leases=of_leases)
    assert result.address == chosen
    assert result.problem is None if words is None else words in str(result.problem)
