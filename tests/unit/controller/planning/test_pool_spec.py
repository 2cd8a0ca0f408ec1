# SPDX-License-Identifier: Apache-2.0
"""What an admin writes about a pool: what is accepted comes back, and contradictions are refused in their line."""

from __future__ import annotations

import json
from contextlib import suppress

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_schema import pool_spec_schema
from tests.unit.controller.planning.fleets import IMAGE, desktop_of
from vgpuctl.config.spec_text import render_spec
from vgpuctl.config.vm_spec import VM_SHAPE
from vgpuctl.config.yaml_reader import load_document
from vgpuctl.controller.model import HostChoice, OnLogoff, PoolKind, ReadyWhen, Schedule
from vgpuctl.controller.planning.pool_spec import dump_pool, names_overlap, parse_pool
from vgpuctl.controller.planning.pool_vm import desktop_vm, image_problem, pool_vm
from vgpuctl.errors import ClockChange, InvalidInput
from vgpuctl.value import replace

OFFICE = """\
kind: floating
image: win11-office
profile: [A16-2B, 2B]
vm: {memory: 8GiB, vcpus: 4, os: windows11, disk: [100], networks: bridge=br0}
names: office-{:03}
maximum: 120
spare: 5
ready_when: port 3389
boot_minutes: 20m
hosts: {site: berlin}
placement: spread
time_zone: Europe/Berlin
schedules:
  - {days: weekdays, from: "07:00", until: "18:00", spare: 20, lead: 30m}
  - {days: [sun], from: 04:00, until: 24:00, spare: 1}
"""
FIXED = "kind: fixed\nimage: train\nprofile: A100-40C\nnames: t-{}\nmaximum: 3\n"
DEDICATED = "kind: dedicated\nimage: cad\nvm: {mode: passthrough, gpus: 1}\nnames: cad-{:02}\nmaximum: 40\n"


def refused(text: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse_pool(text, "p.yaml")
    return caught.value.message


def changed(old: str, new: str, text: str = OFFICE) -> str:
    assert old in text
    return text.replace(old, new)


def test_a_pool_as_an_admin_writes_it():
    spec = parse_pool(OFFICE, "p.yaml")
    assert (spec.kind, spec.profiles, spec.choice) == (PoolKind.FLOATING, ("A16-2B", "2B"), HostChoice.SPREAD)
    assert (spec.ready_when, spec.port, spec.boot_minutes) == (ReadyWhen.PORT, 3389, 20)
    assert spec.vm == {
        "memory": "8GiB", "vcpus": 4, "os": "windows11", "disk": ["100GiB"], "networks": ["bridge=br0"]
    }  # fmt: skip
    assert spec.schedules == (Schedule((0, 1, 2, 3, 4), 420, 1080, 20, 30), Schedule((6,), 240, 1440, 1))
    assert parse_pool(FIXED, "p").on_logoff is OnLogoff.KEEP
    assert parse_pool(DEDICATED, "p").on_logoff is OnLogoff.KEEP


@pytest.mark.parametrize(
    "text",
    [
        OFFICE,
        FIXED,
        DEDICATED,
        OFFICE + "connect: [22, 5901]\n",
        OFFICE + "connect: 22\n",
        DEDICATED + "on_logoff: stop\nlease_days: 30\napart: true\nlogon: domain\n",
    ],
)
def test_what_is_shown_can_be_read_again(text):
    spec = parse_pool(text, "p.yaml")
    assert parse_pool(render_spec(dump_pool(spec)), "again") == spec
    assert parse_pool(dump_pool(spec), "again") == spec
    assert parse_pool(json.loads(json.dumps(dump_pool(spec))), "again") == spec
    jsonschema.validate(load_document(render_spec(dump_pool(spec)), "p").value, pool_spec_schema())


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("spare: 5", "spare: 121", "p.yaml:7:8: spare: 121 are more than maximum: 120"),
        ("spare: 20,", "spare: 200,", "schedules[0].spare: 200 are more than maximum: 120"),
        ("{:03}", "{:02}", "2 are too few digits for maximum: 120; write office-{:03}"),
        ("office-{:03}", "office", "p.yaml:5:8: names: 'office' has no number: write it like office-{:03}"),
        ("office-{:03}", "office-{:03}-{}", "one {} or {:0K} must stand for the number"),
        ("office-", "office-berlin-n", "'office-berlin-n120' has 18 characters, and the name of a Windows computer"),
        ("office-{:03}", "o" * 200 + "{}", "a pattern of 202 characters is too long"),
        ("maximum: 120", "maximum: 0", "0 is not between 1 and 10000"),
        ("maximum: 120", "maximum: 10001", "10001 is not between 1 and 10000"),
        ("maximum: 120", "maximum: '120'", "'120' is text: write the number without quotes"),
        ("Europe/Berlin", "Europe/Berln", "'Europe/Berln' is not a time zone like Europe/Berlin (did you mean"),
        ("Europe/Berlin", "../../etc/passwd", "is not a time zone"),
        ("Europe/Berlin", "Europe", "'Europe' is not a time zone"),
        ('"18:00"', '"06:00"', "p.yaml:14:44: schedules[0].until: 06:00 is not after from: 07:00; over midnight"),
        ('"18:00"', '"07:00"', "07:00 is not after from: 07:00"),
        ('"07:00"', "420", "420 is not text: put it in quotes"),
        ('"07:00"', '"25:00"', "'25:00' is not a time between 00:00 and 24:00"),
        ("lead: 30m", "lead: 2d", "'2d' is not a time in minutes"),
        ("lead: 30m", "lead: 25h", "1500 is not between 0 and 1440"),
        ("weekdays", "[mon, weekdays]", "schedules[0].days: mon is given twice"),
        ("weekdays", "someday", "'someday' is not mon, tue"),
        ("A16-2B, 2B", "2B, 2B", "profile[1]: is given twice"),
        ("A16-2B, 2B", "2B:2", "has a count"),
        ("placement: spread", "placement: sprad", "did you mean 'spread'?"),
        ("port 3389", "port 70000", "70000 is not a port"),
        ("port 3389", "booted", "'booted' is not running, guest or port 3389"),
        ("vm: {", "vm: {name: x, ", "vm.name: specify the pool's names instead"),
        ("vm: {", "vm: {imge: x, ", "vm.imge: unknown field"),
        ("vm: {", "vm: {mode: passthrough, gpus: 1, ", "profile: mode passthrough takes a gpu, not a profile"),
        ("profile: [A16-2B, 2B]\n", "", "no profile given"),
        ("disk: [100]", "disk: [/data/x.qcow2]", "a path is one disk, and desktops share none"),
        ("bridge=br0", "'bridge=br0,mac=52:54:00:00:00:01'", "each desktop has its own MAC address"),
        ("bridge=br0", "none", "ready_when: a VM without a network card has no port"),
        ("vm: {", 'vm: {gpu: "0000:3b:00.0", ', "vm.gpu: 0000:3b:00.0 is an address of one host"),
        ("kind: floating", "kind: floating\non_logoff: keep", "a floating desktop is always refreshed after its user"),
        ("kind: floating\n", "", "kind: missing"),
        ("spare: 5", "logon: locl", "'locl' is not domain or local (did you mean 'local'?)"),
        ("spare: 5", "logon: [local]", "logon: "),
        ("spare: 5", "connect: [22, 22]", "connect[1]: is given twice"),
        ("spare: 5", "connect: []", "the list is empty"),
        ("spare: 5", "connect: 65536", "65536 is not between 1 and 65535"),
        ("spare: 5", "connect: [0]", "0 is not between 1 and 65535"),
        ("spare: 5", "connect: [ssh]", "connect"),
        ("spare: 5", "connect: 22\ndns_name: '{name}.example.org'", "it goes to the address that the host sees"),
        ("bridge=br0", "none}\nconnect: 22\nx: {", "connect: a VM without a network card has no port"),
    ],
)  # fmt: skip
def test_what_cannot_hold_is_refused_in_its_line(old, new, expected):
    assert expected in refused(changed(old, new))


@pytest.mark.parametrize(
    "line", ["spare: 1", "per_user: 1", "on_logoff: keep", "lease_days: 3", "logon: local", "open: rdp", "connect: 22"]
)
def test_a_fixed_pool_has_no_users(line):
    assert "p.yaml:6:1: " in refused(FIXED + line)
    assert "a fixed pool has no users" in refused(FIXED + line)


OPENINGS = (
    "open: rdp\nrdp: {redirectclipboard: 1, gatewayhostname: 'gw:443'}\naddresses: [10.20.0.0/16, 2001:db8::/64]",
    "open: 'https://gw.example.org/?h={address}&u={user}'\ndns_name: '{name}.vdi.example.org'",
    "open: moonlight://{address}",
)


@pytest.mark.parametrize("lines", OPENINGS)
def test_how_desktops_are_opened_can_be_read_again(lines):
    spec = parse_pool(DEDICATED + lines, "p.yaml")
    assert parse_pool(render_spec(dump_pool(spec)), "again") == spec
    jsonschema.validate(load_document(render_spec(dump_pool(spec)), "p").value, pool_spec_schema())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("open: 'javascript:alert(1)'", "open: javascript: links run in the browser itself"),
        ("open: 'search-ms:query'", "open: search-ms: links"),
        ("open: 'https://user:pw@gw.example.org/'", "a link with a name or password before its server"),
        ("open: 'https://gw/{addr}'", "open: {addr} is not known: it can have {address}, {user}, {name}"),
        ('open: "https://gw/\\r\\nx"', "open: rdp, or a link of at most 500 printable ASCII characters"),
        ("open: gateway", "open: rdp, or a link such as"),
        ("rdp: {redirectclipboard: 1}", "rdp: these are keys of RDP files: specify open: rdp"),
        ("rdp: {alternate shell: cmd}\nopen: rdp", "rdp.alternate shell: a pool gives whole desktops"),
        ("rdp: {gatewayhostname: 'gw:99999'}\nopen: rdp", "rdp.gatewayhostname: 'gw:99999': a host name"),
        ("addresses: [10.0.0.1/8]", "addresses[0]: '10.0.0.1/8' is no subnet"),
        ("addresses: [127.0.0.0/8]", "addresses[0]: 127.0.0.0/8: no desktop is there"),
        ("addresses: ['::ffff:10.0.0.0/104']", "no desktop is there"),
        ("dns_name: office", "dns_name: a name in the DNS with {name}"),
        ("dns_name: '..{name}'", "dns_name: a name in the DNS with {name}"),
        ("dns_name: '-{name}'", "dns_name: a name in the DNS with {name}"),
        ("dns_name: '{name}.1'", "dns_name: a name in the DNS with {name}"),
        ("dns_name: '{name}.x.org'\naddresses: [10.0.0.0/8]", "addresses: addresses cannot be checked for a DNS name"),
    ],
)
def test_ways_to_open_a_desktop_that_are_refused(line, words):
    assert words in refused(DEDICATED + line)


def test_no_secret_is_quoted():
    for field in ("cloud_init", "network_config", "password"):
        for value in ("'#cloud-config password: hunter2'", "{wifi: hunter2}", "[hunter2]"):
            assert "hunter2" not in refused(changed("vm: {", f"vm: {{{field}: {value}, "))


def test_lists_have_an_end():
    entry = "  - {days: mon, from: '07:00', until: '08:00', spare: 1}\n"
    assert "at most 50 are allowed" in refused(OFFICE + entry * 60)
    assert "schedules[3]: is given twice" in refused(OFFICE + entry * 2)
    assert "nested too deeply" in refused("vm: " + "[" * 100)


def test_times_that_summer_time_skips_or_repeats_have_a_code_of_their_own():
    for text, expected in (
        (
            "[sun], from: 02:30",
            "p.yaml:15:25: schedules[1].from: 02:30 does not exist on sun 2026-03-29 in Europe/Berlin",
        ),
        ("[sun], from: 02:00", "summer time skips 02:00 to 03:00"),
    ):
        with pytest.raises(ClockChange) as caught:
            parse_pool(changed("[sun], from: 04:00", text), "p.yaml")
        assert caught.value.code == "clock-change"
        assert expected in caught.value.message
    text = changed("[sun], from: 04:00", "[sun], from: 01:30").replace("Europe/Berlin", "America/New_York")
    with pytest.raises(ClockChange, match="happens twice on sun 2026-11-01"):
        parse_pool(text, "p.yaml")
    for accepted in ("[mon], from: 02:30", "[sun], from: 03:00", "[sun], from: 00:00"):
        parse_pool(changed("[sun], from: 04:00", accepted), "p.yaml")
    parse_pool(OFFICE.replace("from: 04:00", "from: 02:30").replace("Europe/Berlin", "UTC"), "p.yaml")


def test_errors_of_a_mapping_have_no_line():
    with pytest.raises(InvalidInput) as caught:
        parse_pool(
            {"kind": "floating", "image": "x", "names": "a-{}", "maximum": 1, "profile": "2B", "spare": 2}, "body"
        )
    assert caught.value.message == "spare: 2 are more than maximum: 1"
    assert caught.value.facts["problems"] == [{"path": "spare", "problem": "2 are more than maximum: 1"}]


words = st.sampled_from(
    ["floating", "2B", "x-{}", "", "02:30", "port 1", "mon", "a\0b", "\n", "none", "spread", "é" * 300]
)
values = st.recursive(st.none() | st.booleans() | st.integers(-5, 20000) | st.floats() | words, st.lists, max_leaves=4)


@given(st.dictionaries(st.sampled_from([*pool_spec_schema()["properties"], "other"]), values))
def test_any_input_is_read_or_refused(fields):
    given_fields = {"kind": "floating", "image": "x", "names": "a-{}", "maximum": 9, "profile": "2B", **fields}
    spec = None
    with suppress(InvalidInput):
        spec = parse_pool(given_fields, "n")
    assert spec is None or parse_pool(render_spec(dump_pool(spec)), "n") == spec


def test_the_schema_is_valid_and_has_the_fields_of_a_vm():
    schema = pool_spec_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(load_document(OFFICE, "n").value, schema)
    vm = schema["properties"]["vm"]["anyOf"][0]["properties"]
    assert set(vm) == set(VM_SHAPE.names) - {"name", "image", "profile", "off_after_setup"}


def test_names_of_two_pools_overlap():
    one = parse_pool(FIXED, "p")
    assert names_overlap(one, replace(one, names="t-1{}", maximum=2)) is None
    assert names_overlap(replace(one, maximum=12), replace(one, names="t-1{}", maximum=2)) == "t-11"


def test_the_vm_of_a_desktop_is_a_vm_spec():
    spec = parse_pool(OFFICE, "p")
    fields = desktop_vm(desktop_of(7), spec, IMAGE)
    checked = VM_SHAPE.check(fields)
    assert (checked["name"], checked["image"], checked["profile"]) == ("d-007", IMAGE.path, ("A16-2B",))
    assert checked["networks"] == ("bridge=br0,mac=52:54:00:00:00:07",)
    assert VM_SHAPE.check(desktop_vm(desktop_of(7), parse_pool(FIXED, "p"), IMAGE))["networks"] == (
        "network=default,mac=52:54:00:00:00:07",
    )
    cad = desktop_vm(desktop_of(1, profile="passthrough"), parse_pool(DEDICATED, "p"), IMAGE)
    assert VM_SHAPE.check(cad)["gpus"] == 1
    assert "profile" not in cad


def test_a_pool_of_a_domain_has_windows_and_names_of_its_computers():
    spec = replace(parse_pool(OFFICE, "p"), vm=pool_vm({"domain_join": "corp"}))
    windows = replace(IMAGE, os="windows11")
    assert image_problem(spec, windows) is None
    assert desktop_vm(desktop_of(1), spec, windows)["domain_join"] == "corp"
    assert image_problem(spec, IMAGE) == "vm: has domain_join, which is for Windows, and the image office has linux"
    wrong = replace(spec, names="office_{}")
    assert "is no name of a Windows computer in a domain" in str(image_problem(wrong, windows))
    assert image_problem(replace(wrong, vm={"domain_join": "none"}), windows) is None


def test_a_pool_and_its_image_fit():
    spec = parse_pool(OFFICE, "p")
    windows = replace(IMAGE, os="windows11")
    assert image_problem(spec, windows) is None
    assert image_problem(spec, replace(windows, retired=True)) == "the image office is retired"
    assert "has linux" in str(image_problem(spec, IMAGE))
    long = replace(parse_pool(FIXED, "p"), names="a-long-name-for-it-{}")
    assert "at most 15" in str(image_problem(long, windows))
    assert image_problem(long, IMAGE) is None
