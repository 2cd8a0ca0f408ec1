# SPDX-License-Identifier: Apache-2.0
"""Lists: columns, order, filters, and the forms wide, csv, name, json and yaml; tables, coloured on a terminal."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

import vgpuctl as library
from tests.unit.cli.conftest import Ran, Run
from vgpuctl.cli import listings
from vgpuctl.cli.listings import View
from vgpuctl.cli.output import PLAIN, Look, render, text_width
from vgpuctl.cli.schemas import all_kinds
from vgpuctl.cli.shown import Column, Listing, Pairs, Table

LISTINGS = [listing for kind in all_kinds() if (listing := listings.find_listing(kind)) is not None]
HOSTS = ("a100-40", "t4", "a16", "l40s-x4", "h100-mig", "rtx-pro-6000", "ascend", "mixed")


@pytest.fixture
def vms(sim: Run) -> Run:
    """A host with two running VMs and one that is off."""
    host = library.open_host("sim:a100-40")
    for name, memory in (("vdi-001", "8GiB"), ("vdi-002", "16GiB"), ("render", "4GiB")):
        host.create_vm(name, profile="A100-4C", memory=memory)
    host.stop_vm("vdi-002", force=True)
    return sim


def _names(ran: Ran) -> list[str]:
    assert ran.status == 0, ran.err
    return ran.out.split()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("", ["render", "vdi-001", "vdi-002"]),
        ("--filter state=running", ["render", "vdi-001"]),
        ("--filter 'state=running,gpu=0000:3b:00.0' --filter 'name=vdi-*'", ["vdi-001"]),
        ("--filter name!=VDI-*", ["render"]),
        ("--filter 'memory=8 GiB'", ["vdi-001"]),
        ("--filter memory=8192", ["vdi-001"]),
        ("--filter profile=a100-4c,state!=running", ["vdi-002"]),
        ("--sort-by memory", ["render", "vdi-001", "vdi-002"]),
        ("--sort-by -memory", ["vdi-002", "vdi-001", "render"]),
        ("--sort-by state,name:desc", ["vdi-001", "render", "vdi-002"]),
        ("--filter 'name=vdi-{001..002},state=running'", ["vdi-001"]),
        ("--filter 'name={render,vdi-002}'", ["render", "vdi-002"]),
        ("--filter 'name!={vdi-*,nobody}'", ["render"]),
        ("--filter name=nobody", []),
    ],
)
def test_rows_are_chosen_and_ordered_alike_in_every_form(vms: Run, options: str, names: list[str]) -> None:
    assert _names(vms(f"list-vms -o name {options}")) == names
    document = vms(f"list-vms --json {options}").document
    assert [row["name"] for row in document["data"]] == names
    assert YAML(typ="safe").load(vms(f"list-vms -o yaml {options}").out) == document
    rows = list(csv.DictReader(io.StringIO(vms(f"list-vms -o csv {options}").out)))
    assert [row["name"] for row in rows] == names
    table = vms(f"list-vms {options}")
    assert [line.split()[0] for line in table.out.splitlines()[1:]] == names
    assert table.err == ("" if names else "nothing matches --filter name=nobody\n")


def test_columns_and_headers(vms: Run) -> None:
    ran = vms("list-vms --columns gpu,name,memory_mib --no-headers --filter name=render")
    assert ran.out == "0000:3b:00.0  render  4 GiB\n"
    ran = vms("list-vms -o csv --columns name --columns memory,uuid --filter name=render")
    assert ran.out.startswith("name,memory_mib,uuid\nrender,4096,")
    assert vms("list-vms -o csv --columns name --no-headers --filter name=render").out == "render\n"


def test_csv_leaves_unknown_values_empty_and_quotes(sim: Run) -> None:
    rows = {row["address"]: row for row in csv.DictReader(io.StringIO(sim("list-gpus -o csv", "mixed").out))}
    assert rows["mtty"]["memory_mib"] == ""
    assert "?" in sim("list-gpus --filter address=mtty", "mixed").out
    rows = {row["profile"]: row for row in csv.DictReader(io.StringIO(sim("list-profiles -o csv", "l40s-x4").out))}
    assert rows["L40S-4Q"]["gpu"].count(",") == 3


def test_csv_has_no_text_that_a_spreadsheet_computes() -> None:
    columns = (Column("name", "NAME", lambda row: row[0]), Column("late", "LATE", lambda row: row[1], numeric=True))
    listing = Listing("VMs", columns, lambda row: str(row[0]))
    hosts = [("@gpu01", [("=1+1", -3), ("a=b", 4)])]
    assert listings.csv_text(listing, View(), hosts, has_headers=False, has_host=True) == (
        "'@gpu01,'=1+1,-3\n'@gpu01,a=b,4\n"
    )


def test_unknown_values_come_last_in_both_orders(sim: Run) -> None:
    for order in ("memory", "-memory"):
        assert _names(sim(f"list-gpus -o name --sort-by {order}", "mixed"))[-1] == "mtty"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("list-vms --columns name,stat", "--columns: VMs have no column 'stat'"),
        ("list-vms --sort-by uid", "--sort-by: VMs have no column 'uid'"),
        ("list-vms --sort-by name:up", "the order is asc or desc, not 'up'"),
        ("list-vms --filter name=vdi-[001:002]", "hint: write 'vdi-{001..002}'"),
        ("list-vms --filter name=vdi-{", "the braces do not match"),
        ("list-vms --filter running", "--filter: 'running' is not a condition"),
        ("list-vms --filter a=b", "the columns are name, state, owner, ownership"),
        ("show-vm a -o csv", "-o csv works with lists only, and show-vm does not print a list"),
        ("create-vm a --profile A100-4C -o name", "these commands print a list: list-gpus,"),
        ("show-vm a --filter a=b", "these commands have --filter: list-gpus, list-vms,"),
        ("--columns name list-vms", "it goes after the command's name: vgpuctl list-vms --columns"),
        ("list-vms --json -o yaml", "--json is -o json: it does not go with -o yaml"),
    ],
)
def test_what_a_command_does_not_have_is_refused_before_it_does_anything(vgpuctl: Run, line: str, message: str) -> None:
    ran = vgpuctl("--host", "sim:a100-40", *line.split())
    assert ran.status == 2
    assert message in ran.out + ran.err
    assert vgpuctl("--host", "sim:a100-40", "list-vms", "-o", "name").out == ""


def test_the_later_place_wins_and_a_failure_is_yaml_too(vgpuctl: Run) -> None:
    def sim(line: str) -> Ran:
        return vgpuctl("--host", "sim:a100-40", *line.split())

    assert sim("--json list-vms -o yaml").out.startswith("schema: vgpuctl/1\n")
    assert sim("-o yaml list-vms --json").out.startswith("{")
    for options in ("-o yaml", "-oyaml", "--output=yaml", "--output yaml"):
        ran = sim(f"show-vm nobody {options}")
        assert (YAML(typ="safe").load(ran.out)["error"]["code"], ran.err) == ("not-found", "")
        assert YAML(typ="safe").load(sim(f"list-vms --bad {options}").out)["error"]["code"] == "usage"


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("line", ["list-gpus", "list-vms", "list-vgpus", "list-profiles --all", "list-images"])
def test_default_tables_fit_into_a_terminal(sim: Run, host: str, line: str) -> None:
    opened = library.open_host(f"sim:{host}")
    for profile in [row.profile for row in opened.list_profiles().data][:1]:
        opened.create_vms("department-vdi-{:03}", count=2, profile=profile)
    ran = sim(line, host)
    most = 100 if line == "list-gpus" else 80  # used and free are what an admin looks for first
    assert all(len(text) <= most for text in ran.out.splitlines()), ran.out


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda listing: listing.noun)
def test_keys_and_headers_name_one_column(listing: Listing) -> None:
    for names in (
        [column.key for column in listing.columns],
        [column.csv_key for column in listing.columns],
        [column.header for column in listing.columns],
    ):
        assert len(names) == len({*names})


def test_a_family_of_columns_takes_any_key() -> None:
    listing = Listing(
        "VMs",
        (Column("name", "NAME", lambda row: row["name"]),),
        lambda row: str(row["name"]),
        {"label": lambda row, key: row["labels"].get(key)},
    )
    rows = [{"name": "a", "labels": {"site": "b1"}}, {"name": "b", "labels": {}}]
    table = listings.make_table(listing, View(columns=("name", "label.site")), rows)
    assert render([table], PLAIN) == "NAME  label.site\na     b1\nb     -\n"
    assert listings.row_numbers(listing, View(filters=("label.site=b*",)), rows) == [0]
    assert listings.row_numbers(listing, View(filters=("label.site=",)), rows) == [1]


def test_json_keeps_its_short_form(sim: Run) -> None:
    assert json.loads(sim("list-vms -o json").out) == sim("list-vms --json").document


def test_scenarios_are_a_list_too(vgpuctl: Run) -> None:
    assert "sim:a100-40" in vgpuctl("sim", "list-scenarios", "-o", "name").out.split()
    assert vgpuctl("sim", "list-scenarios", "--columns", "host", "--filter", "host=*t4").out == "HOST\nsim:t4\n"


def test_colours_are_for_a_terminal_or_as_asked(vms: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in vms("list-vms").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32mrunning\x1b[0m" in vms("list-vms --color always").out
    assert "\x1b" not in vms("list-vms --color never").out


def test_list_gpus_shows_what_is_used_and_free_by_default(sim):
    sim("create-vm vdi-001 --profile A100-8C")
    header, row = sim("list-gpus").out.splitlines()
    assert header.split()[-3:] == ["USED", "FREE", "VGPUS"]
    assert row.split()[-5:] == ["8", "GiB", "32", "GiB", "1"]


TABLE = Table(("ADDRESS", "FREE", "MODEL"), (("0000:3b:00.0", "10", "A100"), ("mtty", "?", "-")), frozenset({"FREE"}))
LONG = Table(
    ("NAME", "STATE", "NOTE"),
    (("a-name-that-is-long", "running", "a sentence that nobody needs completely"), ("b", "stopped", "short")),
    free_text=frozenset({"NOTE"}),
    states=frozenset({"STATE"}),
)
_SEQUENCE = re.compile(r"\x1b\[\d+m")


def test_a_table() -> None:
    assert render([TABLE]) == "ADDRESS       FREE  MODEL\n0000:3b:00.0    10  A100\nmtty             ?  -\n"
    assert render([TABLE], Look(has_headers=False)) == "0000:3b:00.0  10  A100\nmtty           ?  -\n"


def test_pairs_and_text() -> None:
    assert render([Pairs((("name", "vdi-001"), ("numa node", "1"))), "", "text"]) == (
        "name:      vdi-001\nnuma node: 1\n\ntext\n"
    )


@pytest.mark.parametrize("width", range(1, 90))
def test_a_narrow_terminal_cuts_free_text_alone(width: int) -> None:
    lines = render([LONG], Look(width)).splitlines()
    assert all(line.startswith(name) for line, name in zip(lines, ("NAME", "a-name-that-is-long", "b"), strict=True))
    assert "running" in lines[1]
    longest = max(len(line) for line in lines)
    assert longest <= max(width, 19 + 2 + 7 + 2 + 12)
    assert ("…" in lines[1]) is (width < 19 + 2 + 7 + 2 + 39)


def test_colours_change_no_column() -> None:
    coloured = render([LONG, Pairs((("state", "running"),))], Look(has_colours=True))
    assert _SEQUENCE.sub("", coloured) == render([LONG, Pairs((("state", "running"),))])
    assert coloured.count("\x1b[32mrunning\x1b[0m") == 2
    assert "\x1b[2mstopped\x1b[0m" in coloured


def test_wide_characters_keep_the_columns() -> None:
    lines = render([Table(("A", "B"), (("机器", "x"), ("é", "x"), ("e\u0301", "x")))]).splitlines()
    assert {text_width(line) for line in lines} == {len("机器") * 2 + 3}


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5), st.integers(1, 30))
def test_a_row_is_a_line_whatever_is_in_it(rows: list[tuple[str, str]], width: int) -> None:
    table = Table(("A", "B"), tuple(rows), free_text=frozenset({"B"}))
    for chosen in (Look(), Look(width)):
        text = render([table], chosen)
        assert text.count("\n") == len(rows) + 1
        assert not any(ord(character) < 32 and character != "\n" for character in text if character != "\t")
