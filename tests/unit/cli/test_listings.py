# SPDX-License-Identifier: Apache-2.0
"""Lists: columns, order, filters, and the forms wide, csv, name, json and yaml.

Pages: unknown is `?`, nothing is `-`, and everything but the result goes to stderr.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from ruamel.yaml import YAML

import vgpuctl as library
from tests.unit.cli.conftest import Ran
from vgpuctl.cli import listings, shown
from vgpuctl.cli.listings import View
from vgpuctl.cli.output import PLAIN, render
from vgpuctl.cli.result_reader import read_result
from vgpuctl.cli.schemas import all_kinds, result_type
from vgpuctl.cli.shown import Column, Listing
from vgpuctl.model.outcome import Outcome, QueryResult

Run = Callable[..., Ran]
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


def vgpu(**more: Any) -> dict[str, Any]:
    return {
        "carrier": "0000:3b:00.4", "profile": "A100-4C", "gpu": "0000:3b:00.0", "function": "0000:3b:00.4",
        "backend": "vendor-vf", "framebuffer_mib": 4096, "vm": "vdi-001", "ownership": "managed", "present": True,
        "reason": None, "name": None, "placement_id": None, "gpu_instance_id": None, "companions": [],
        "attached": None, "other_vms": [], **more,
    }  # fmt: skip


GPU: dict[str, Any] = {
    "address": "0000:3b:00.0", "model": "NVIDIA A100-PCIE-40GB", "backend": "vendor-vf", "mode": "vgpu",
    "driver": "nvidia", "framebuffer_mib": 40960, "numa_node": 0, "iommu_group": None, "pcie_switch": None,
    "vfs": {"total": 16, "enabled": 16, "used": 2},
    "vgpus": [vgpu(), vgpu(ownership="unmanaged", vm=None, profile=None)], "problems": ["a fan is loud"],
    "desired_mode": None, "cordoned": False, "allowed_profiles": None, "reserved_for": [], "mixed_size": None,
    "scheduler": None,
}  # fmt: skip
DETAILS: dict[str, Any] = {
    **GPU, "console": [], "group_members": [], "functions": [], "types": [], "mig": None,
    "scheduler_limits": None, "scheduler_at_load": None, "scheduler_next": None, "shares": [],
}  # fmt: skip
VM: dict[str, Any] = {
    "name": "vdi-001", "uuid": "6f1c", "state": "running", "ownership": "managed", "record": "ready",
    "owner": "cad-team", "labels": {"team": "cad"},
    "memory_mib": 4096, "vcpus": 2, "firmware": "uefi",
    "networks": [{"network": "default", "bridge": None, "vlan": None, "model": "virtio", "mac": None}],
    "hugepages": "none", "pinned_cpus": None, "memory_nodes": None, "display": False,
    "vgpus": [vgpu()], "reserve": None, "spread_group": None, "image": None, "cloud_init": None, "network_config": None,
    "disks": [
        {"path": "/d/a.qcow2", "device": "disk", "size_bytes": 40 << 30, "base": "/d/base.qcow2", "copied_from": None,
         "made": True},
    ],
}  # fmt: skip

DRY_RUN = {"steps": [], "notes": [], "dry_run": True}


def result(kind: str, data: Any) -> Outcome | QueryResult:
    """Return the result that a command printed as this JSON."""
    return read_result(result_type(kind), {"data": data})


def text(kind: str, data: Any) -> str:
    return render(listings.page(kind, result(kind, data)).blocks)


def test_gpus() -> None:
    bare = {**GPU, "address": "mtty", "backend": None, "driver": None, "framebuffer_mib": None,
            "vfs": {"total": 0, "enabled": 0, "used": 0}, "vgpus": [], "problems": []}  # fmt: skip
    page = listings.page("list-gpus", result("list-gpus", [GPU, bare]))
    assert render(page.blocks) == (
        "ADDRESS       MODEL                  MODE  MEMORY   USED    FREE  VGPUS\n"
        "0000:3b:00.0  NVIDIA A100-PCIE-40GB  vgpu  40 GiB  8 GiB  32 GiB  2 (1 unmanaged)\n"
        "mtty          NVIDIA A100-PCIE-40GB  vgpu       ?      0       ?  0\n"
    )
    wide = listings.page("list-gpus", result("list-gpus", [GPU, bare]), View(wide=True))
    assert render(wide.blocks).splitlines()[1:] == [
        "0000:3b:00.0  NVIDIA A100-PCIE-40GB  vgpu  40 GiB  8 GiB  32 GiB  2 (1 unmanaged)  16/16, 2 used  vendor-vf"
        "  nvidia     0      -  -       -",
        "mtty          NVIDIA A100-PCIE-40GB  vgpu       ?      0       ?  0                -              -"
        "          -          0      -  -       -",
    ]
    assert page.stderr_lines == ["0000:3b:00.0: a fan is loud"]


def test_a_gpu_with_mixed_sizes_or_mig_says_so_and_where_each_vgpu_is() -> None:
    mixed = {**DETAILS, "mixed_size": True, "mig": None, "vgpus": [vgpu(placement_id=24), vgpu(vm="vdi-002")]}
    output = text("show-gpu", mixed)
    assert "mode:        vgpu, mixed sizes\n" in output
    assert "0000:3b:00.4  A100-4C  vdi-001  managed    placement 24\n" in output
    assert "0000:3b:00.4  A100-4C  vdi-002  managed    -\n" in output
    instance = {"id": 3, "profile": "3g.20gb", "start": 4, "size": 4}
    mig = {"enabled": True, "pending": False, "instances": [instance]}
    output = text("show-gpu", {**DETAILS, "mig": mig, "mixed_size": False, "vgpus": [vgpu(gpu_instance_id=3)]})
    assert "on, off after a reset of the GPU\n" in output
    assert "3: 3g.20gb, memory slices 4:4\n" in output
    assert "managed    GPU instance 3\n" in output
    off = text("show-gpu", {**DETAILS, "mig": {"enabled": False, "pending": False, "instances": []}})
    assert "WHERE" not in off
    assert "mig" not in off
    assert "A100-4C on GPU 0000:3b:00.0, placement 24 (0000:3b:00.4)" in text(
        "show-vm", {**VM, "vgpus": [vgpu(placement_id=24)]}
    )


def test_one_gpu() -> None:
    types = [{"profile": "A100-4C", "name": "GRID A100-4C", "type_id": "468", "framebuffer_mib": 4096,
              "max_per_gpu": None, "free": 8, "free_at_least": 8, "gpu_instance_profile": None}]  # fmt: skip
    output = text("show-gpu", {**DETAILS, "types": types})
    assert "problem:     a fan is loud\n" in output
    assert "0000:3b:00.4  A100-4C  vdi-001  managed\n" in output
    assert "0000:3b:00.4  ?        -        unmanaged\n" in output
    assert "A100-4C  468    4 GiB        ?     8\n" in output
    leaked = vgpu(ownership="leaked", reason="its VM is gone")
    assert "its VM is gone" in text("show-gpu", {**DETAILS, "vgpus": [leaked]})


def test_profiles() -> None:
    row: dict[str, Any] = {
        "profile": "A100-4C",
        "name": "GRID A100-4C",
        "type_id": None,
        "framebuffer_mib": 512,
        "max_per_gpu": None,
        "free": None,
        "free_at_least": 0,
        "excludes": None,
        "gpus": [{"address": "a", "free": None, "free_at_least": 0}, {"address": "b", "free": 0, "free_at_least": 0}],
    }
    assert text("list-profiles", [row, {**row, "free": 0, "gpus": []}]) == (
        "PROFILE  TYPE   MEMORY  MAX/GPU  FREE  GPU\n"
        "A100-4C  ?     512 MiB        ?     ?  a\n"
        "A100-4C  ?     512 MiB        ?     0  -\n"
    )  # fmt: skip


def test_explain_shortens_long_lists() -> None:
    many = [vgpu(vm=f"vdi-{n:03}") for n in range(1, 11)]
    gpu = {
        "address": "a", "model": "A100", "free": 0, "free_at_least": 0, "rule": "one size",
        "reasons": ["10 of 10 in use"], "vgpus": many, "in_the_way": [],
    }  # fmt: skip
    assert text("explain", {"profile": "A100-4C", "free": 0, "free_at_least": 0, "moves": [], "gpus": [gpu]}) == (
        "A100-4C: 0 more on this host\n\na  A100: 0 more\n  rule: one size\n  10 of 10 in use\n"
        "  10 in use: vdi-001, vdi-002, vdi-003, vdi-004, vdi-005, vdi-006 … vdi-010\n"
    )
    assert text("explain", {"profile": "A100-4C", "free": None, "free_at_least": 0, "moves": [], "gpus": []}) == (
        "A100-4C: unknown how many more fit: the driver does not report it\n"
    )


def test_moves_are_numbered_with_the_places_that_are_given_up() -> None:
    move = {
        "carrier": "c", "state": "running", "profile": "DC-24Q", "from_gpu": "a", "from_placement_id": 24,
        "to_gpu": "a", "to_placement_id": 48,
    }  # fmt: skip
    moves = [{"vm": f"vdi-{n}", "uuid": str(n), **move, "waits": n == 2, "round": n + 1} for n in (1, 2)]
    steps = ["leave", "first", "second"]
    for command, line in (("plan-moves", "2 VMs would be moved:\n"), ("move-vms", "2 VMs moved:\n")):
        work = {"steps": steps, "notes": [], "dry_run": command == "plan-moves"}
        data = {"moves": moves, "places": [], "fewest": True, "source_gpu": None, "stays": [], **work}
        assert text(command, data) == f"{line}  1  leave\n  2  first\n  3  second\n"
    assert text("explain", {"profile": "DC-24Q", "free": 0, "free_at_least": 0, "moves": moves, "gpus": []}).endswith(
        "one more fits after 2 moves (vgpuctl move-vms --profile DC-24Q):\n"
        "  stop, move and start VM vdi-1: DC-24Q, a placement 24 -> a placement 48\n"
        "  stop, move and start VM vdi-2: DC-24Q, a placement 24 -> a placement 48 (it gives up its place first)\n"
    )


def test_vms() -> None:
    assert text("list-vms", [VM, {**VM, "name": "other", "owner": None, "ownership": "unmanaged", "vgpus": []}]) == (
        "NAME     STATE    OWNER     OWNERSHIP  VGPUS\n"
        "vdi-001  running  cad-team  managed    A100-4C on 0000:3b:00.0\n"
        "other    running  -         unmanaged  -\n"
    )


def test_duplicates_are_counted() -> None:
    assert (
        shown.vgpus_text(result("list-vms", [{**VM, "vgpus": [vgpu(), vgpu()]}]).data[0].vgpus)
        == "2 x A100-4C on 0000:3b:00.0"
    )
    assert shown.shorten_names(["a", "b", "a"]) == "a (2), b"


def test_one_vm() -> None:
    output = text("show-vm", {**VM, "vgpus": [vgpu(present=False)]})
    assert "memory:    4 GiB\n" in output
    assert "owner:     cad-team\n" in output
    assert "labels:    team=cad\n" in output
    assert "vgpu:      A100-4C on GPU 0000:3b:00.0 (0000:3b:00.4, missing)\n" in output
    assert "disk:      /d/a.qcow2 (40 GiB, clone of /d/base.qcow2)\n" in output


def test_a_change_shows_what_is_there_now() -> None:
    done = {**VM, "steps": ["start"], "notes": [], "dry_run": False}
    assert text("create-vm", done) == (
        "vdi-001: running\n"
        "  vgpu  A100-4C on GPU 0000:3b:00.0 (0000:3b:00.4)\n"
        "  disk  /d/a.qcow2 (40 GiB, clone of /d/base.qcow2)\n"
        "  net   default, virtio, no address yet\n"
    )
    assert text("ensure-vm", {**done, "steps": []}).endswith("  nothing to do\n")


def test_a_dry_run_shows_steps_and_sources() -> None:
    sources = {"memory": {"value": "4GiB", "source": "default"}, "disk": {"value": [], "source": "command-line"},
               "force": {"value": True, "source": "command-line"}}  # fmt: skip
    data = {**VM, "steps": ["make the disk", "start"], "notes": [], "dry_run": True, "sources": sources}
    assert text("create-vm", data) == (
        "would do:\n  1  make the disk\n  2  start\n\n"
        "FIELD   VALUE  SOURCE\nmemory  4GiB   default\ndisk    -      command line\nforce   yes    command line\n"
    )
    assert text("start-vm", {**VM, "steps": [], "notes": [], "dry_run": True}) == "nothing to do\n"


def test_passthrough_names_the_gpu_once() -> None:
    whole = vgpu(carrier="0000:3b:00.0", profile=None)
    assert "  gpu   0000:3b:00.0\n" in text(
        "create-vm", {**VM, "vgpus": [whole], "steps": ["x"], "notes": [], "dry_run": False}
    )


def test_reconcile() -> None:
    leaked = {"kind": "leaked", "what": "A100-4C on x: its VM is gone", "action": "remove it"}
    data = {"findings": [leaked], "steps": ["remove it"], "notes": [], "dry_run": False}
    assert text("reconcile-host", data) == "A100-4C on x: its VM is gone\n  remove it\n"
    assert text("reconcile-host", {**data, "dry_run": True}).endswith("\nwould do:\n  1  remove it\n")
    assert text("reconcile-host", {**data, "findings": [], "steps": []}) == "nothing to do\n"


@pytest.mark.parametrize("kind", ["list-gpus", "list-profiles", "list-vms"])
def test_an_empty_list_is_on_stderr(kind: str) -> None:
    page = listings.page(kind, result(kind, []))
    assert not page.blocks
    assert page.stderr_lines[0].startswith("no ")


@pytest.mark.parametrize(("value", "text"), [(None, "?"), (0, "0 MiB"), (1536, "1536 MiB"), (2048, "2 GiB")])
def test_sizes(value: int | None, text: str) -> None:
    assert shown.mib(value) == text
    assert shown.size(None if value is None else value << 20) == text


def test_unknown_vms_are_not_called_none() -> None:
    assert listings.page("list-vms", QueryResult((), ("VMs are unknown: no libvirt",))) == listings.Page()


def test_images() -> None:
    clone = {"path": "/d/a.qcow2", "vms": ["vdi-001"]}
    base = {"path": "/d/base.qcow2", "pool": None, "volume": None, "format": None, "size_bytes": None,
            "role": "base", "base": None, "vms": [],
            "children": [clone, {"path": "/d/x.qcow2", "vms": []}]}  # fmt: skip
    lost = {"path": "/d/x.qcow2", "pool": "default", "volume": "x.qcow2", "format": "qcow2", "size_bytes": 1 << 30,
            "role": "orphan", "base": "/d/base.qcow2", "vms": [], "children": []}  # fmt: skip
    page = listings.page("list-images", result("list-images", [base, lost]))
    assert render(page.blocks) == (
        "IMAGE          ROLE     SIZE  CLONES  VMS\n"
        "/d/base.qcow2  base        ?       2  -\n"
        "x.qcow2        orphan  1 GiB       0  -\n"
    )
    wide = render(listings.page("list-images", result("list-images", [base, lost]), View(wide=True)).blocks)
    assert "-              /d/base.qcow2  vdi-001, /d/x.qcow2\n" in wide

    assert page.stderr_lines == ["1 named like disks of vgpuctl, and no VM refers to them"]
    assert listings.page("list-images", result("list-images", [])).stderr_lines


def test_a_console() -> None:
    screens = [
        {"type": "vnc", "listen": "127.0.0.1", "port": 5901, "tls_port": None, "socket": None, "password": False},
        {"type": "spice", "listen": "::", "port": 5902, "tls_port": 5903, "socket": None, "password": True},
        {"type": "vnc", "listen": None, "port": None, "tls_port": None, "socket": "/run/s", "password": None},
        {"type": "vnc", "listen": None, "port": None, "tls_port": None, "socket": None, "password": None},
    ]
    serial = [{"target": "serial", "terminal": None, "command": ["virsh", "console", "a b"]}]
    vm = {"name": "a b", "uuid": "6f1c", "state": "running"}
    page = listings.page("show-console", result("show-console", {**vm, "graphics": screens, "serial": serial}))
    assert render(page.blocks) == (
        "name:   a b\nstate:  running\nvnc:    127.0.0.1:5901, no password\n"
        "spice:  [::]:5902 and [::]:5903 (TLS), asks for a password\n"
        "vnc:    /run/s, password not known\nvnc:    no port yet, password not known\n"
        "serial: virsh console 'a b'\n"
    )
    assert [line.partition(" ")[0] for line in page.stderr_lines] == ["the", "from"]
    assert listings.page("show-console", result("show-console", {**vm, "graphics": [], "serial": []})).stderr_lines
