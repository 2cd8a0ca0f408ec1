# SPDX-License-Identifier: Apache-2.0
"""Which arguments go to other hosts, and how their replies become one."""

from __future__ import annotations

import shlex
import subprocess
from json import loads

import pytest

from tests.unit.cli.conftest import Run
from vgpuctl import __version__
from vgpuctl.agent.rights import HOST_CHANGES
from vgpuctl.cli import agent_login, listings, remote_command, remote_result
from vgpuctl.cli.command import cli
from vgpuctl.cli.command_table import COMMANDS
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Table
from vgpuctl.errors import worst_status
from vgpuctl.model import documents
from vgpuctl.remote.fanout import HostReply
from vgpuctl.remote.reply import Reply
from vgpuctl.remote.session import Target


@pytest.mark.parametrize(
    ("typed", "there", "file"),
    [
        ("--host ssh://a list-gpus --all", "list-gpus --all", None),
        ("list-gpus --host=ssh://a{1..3} --host ssh://b --json", "list-gpus", None),
        ("-v --wait 5 --host-deadline 3 --hosts-at-a-time 2 list-gpus --progress", "-v --wait 5 list-gpus", None),
        ("create-vm a --profile --host --host ssh://x", "create-vm a --profile --host", None),
        ("create-vm --host ssh://x -- --host", "create-vm -- --host", None),
        ("create-vm a --image /srv/x.qcow2 --profile p", "create-vm a --image /srv/x.qcow2 --profile p", None),
        ("apply -f here.yaml --dry-run", "apply -f - --dry-run", "here.yaml"),
        ("apply -fhere.yaml", "apply -f-", "here.yaml"),
        ("apply -vfhere.yaml", "apply -vf-", "here.yaml"),
        ("apply -vf here.yaml", "apply -vf -", "here.yaml"),
        ("apply --file=here.yaml --set a=b", "apply --file=- --set a=b", "here.yaml"),
        ("apply", "apply", None),
        ("apply --undo --json --host ssh://a", "apply --undo", None),
        ("apply --undo 3 --yes", "apply --undo 3 --yes", None),
        ("install-host --deb vgpuctl.deb --dry-run", "install-host --dry-run", None),
        ("import -", "import -", "-"),
        ("import /etc/mdevctl.d", "import /etc/mdevctl.d", None),
    ],
)
def test_arguments_go_there_unchanged(typed: str, there: str, file: str | None) -> None:
    words = shlex.split(typed)
    name = next(word for word in words if word in cli.help_texts)
    result = remote_command.forward_args(words, cli.load(name), cli.params)
    assert (" ".join(result.args), result.stdin_file) == (there, file)


def test_the_commands_that_only_root_may_run_are_those_of_the_agents_rights() -> None:
    named = {name for name in COMMANDS if {name, f"{name}-host"} & {*HOST_CHANGES}}
    assert named == agent_login.ROOT_COMMANDS
    assert {*HOST_CHANGES} - {*named, *(f"{name}-host" for name in named)} == {"fix-problems"}, "doctor --fix"


@pytest.mark.parametrize(
    ("statuses", "status"),
    [([0, 0], 0), ([0, 7], 7), ([7, 75], 75), ([75, 4], 4), ([4, 2], 2), ([2, 6], 6), ([6, 3], 3), ([3, 1], 1),
     ([1, 5], 5), ([5, 130], 130), ([130, 143], 143), ([0, 99], 1), ([], 0)],
)  # fmt: skip
def test_the_exit_status_is_the_worst(statuses: list[int], status: int) -> None:
    assert worst_status(statuses) == status


def test_equal_tables_become_one_and_other_pages_get_headings() -> None:
    one, two = Table(("A",), (("1",),)), Table(("A",), (("2",), ("3",)))
    (whole,) = listings.join_pages([("x", [one]), ("y", [two]), ("z", [])], "HOST")
    assert whole == Table(("HOST", "A"), (("x", "1"), ("y", "2"), ("y", "3")))
    other = Table(("B",), ())
    assert listings.join_pages([("x", [one]), ("y", [other])], "HOST") == ["== x", one, "", "== y", other]


WHOLE = {
    "name": "vdi-001", "uuid": "u", "state": "running", "ownership": "managed", "memory_mib": 1, "vcpus": 1,
    "owner": None, "labels": {},
    "reserve": None, "image": None, "vgpus": [],
}  # fmt: skip


def reply(name: str, data: object, kind: str = "list-vms") -> HostReply:
    """Return the reply of a host."""
    result = {"schema": "vgpuctl/1", "kind": kind, "ok": True, "changed": False, "data": data, "warnings": []}
    return HostReply(Target(name, name), 0.1, Reply(result, 0))


@pytest.mark.parametrize(
    ("bad", "output"),
    [
        (reply("gpu-01", None), "data is null, not a list"),
        (reply("gpu-01", {}), "data is an object, not a list"),
        (reply("gpu-01", [{}]), "data[0].name is missing"),
        (reply("gpu-01", [WHOLE, 5]), "data[1] is a number, not an object"),
        (reply("gpu-01", [{**WHOLE, "name": 1}]), "data[0].name is a number"),
        (reply("gpu-01", [{**WHOLE, "memory_mib": True}]), "data[0].memory_mib is true or false"),
        (reply("gpu-01", [{**WHOLE, "memory_mib": 10**300}]), "data[0].memory_mib is a number"),
        (reply("gpu-01", [{**WHOLE, "reserve": {}}]), "data[0].reserve is an object"),
        (reply("gpu-01", [], "list-gpus"), "it is of the kind 'list-gpus'"),
        (reply("gpu-01", [], 5), "it is of the kind 5"),
    ],
)
@pytest.mark.parametrize("json", [False, True])
def test_an_answer_of_another_shape_fails_its_host_alone(
    capsys: pytest.CaptureFixture[str], bad: HostReply, output: str, json: bool
) -> None:
    settings = Settings(json=json)
    settings.kind = "list-vms"
    newer = {**WHOLE, "state": "a-newer-word", "more": [1]}
    assert remote_result.print_replies(settings, [bad, reply("gpu-02", [newer])], 0) == 6
    captured = capsys.readouterr()
    assert "gpu-02" in captured.out
    assert (
        f"gpu-01: the vgpuctl there sent a result of list-vms that this version cannot read: {output}"
        in captured.out + captured.err
    )
    assert remote_result.print_reply(settings, bad, 0) == 6


OLD_VM = {"name": "vdi 1", "uuid": "u", "state": "off", "steps": [f"define VM vdi 1{chr(7)}", "start VM vdi 1"]}


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize(
    ("data", "observed", "lines"),
    [
        (
            {**OLD_VM, "vgpus": [{}]},
            "vgpuctl --host ssh://gpu-01 show-vm 'vdi 1'",
            ["define VM vdi 1", "start VM vdi 1"],
        ),
        ({**OLD_VM, "steps": 5}, "vgpuctl --host ssh://gpu-01 show-vm 'vdi 1'", []),
        (None, "vgpuctl --host ssh://gpu-01 list-vms", []),
    ],
)
def test_a_change_reported_in_an_unknown_shape_is_never_a_host_failure(
    capsys: pytest.CaptureFixture[str], data: object, observed: str, lines: list[str], json: bool
) -> None:
    settings = Settings(json=json)
    settings.kind = "create-vm"
    reported = reply("gpu-01", data, "create-vm")
    assert reported.parsed is not None
    result = {**reported.parsed.document, "changed": True}
    made = HostReply(reported.target, 0.1, Reply(result, 0))
    assert remote_result.print_reply(settings, made, 0) == 5
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert "gpu-01: create-vm is done there, and the vgpuctl there sent a result of" in text
    assert observed in text
    assert "vgpuctl --host ssh://gpu-01 install-host --deb FILE" in text
    assert all(line in text for line in lines)
    assert remote_result.print_replies(settings, [made, made], 0) == 5
    several = capsys.readouterr()
    if json:
        one, many = loads(captured.out), loads(several.out)["data"]["hosts"][0]["document"]
        assert [(d["error"]["code"], d["changed"]) for d in (one, many)] == [("answer-lost", True)] * 2
        assert many["error"]["facts"]["here"] == __version__
    assert "host-cannot" not in text + several.out + several.err


def test_a_reply_in_an_unknown_shape_names_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings()
    settings.kind = "list-vms"
    assert remote_result.print_reply(settings, reply("gpu-01", None), 0) == 6
    text = capsys.readouterr().err
    assert f"this is {__version__}" in text
    assert "ssh ssh://gpu-01 vgpuctl --version" in text


def test_doctor_facts_in_an_unknown_form_are_omitted(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"schema": "vgpuctl/1", "kind": "list-vms", "ok": False, "changed": False, "warnings": [], "error": {
        "code": "failed", "message": "no libvirt", "hint": None, "facts": {"doctor": [{"id": "x"}]}}}  # fmt: skip
    settings = Settings()
    settings.kind = "list-vms"
    remote_result.print_reply(settings, HostReply(Target("a", "a"), 0.1, Reply(result, 1)), 0)
    assert capsys.readouterr().err == "vgpuctl: no libvirt   [failed]\n"


def test_a_remote_failure_of_any_form_is_reported() -> None:
    assert documents.read_failure({"facts": 1, "left": "x", "exit_status": "9"}).status == 1


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("list-vms", False),
        ("fits --profile A100-4C", False),
        ("plan-moves --defragment", False),
        ("wait a --for off", False),
        ("log --failed", False),
        ("reboot-vm a", True),
        ("move-vms --defragment", True),
        ("move-vms --defragment --dry-run", False),
        ("ensure-vgpu lab --profile A100-4C", True),
        ("ensure-vgpu lab --profile A100-4C --dry-run", False),
        ("doctor", False),
        ("doctor --fix", True),
    ],
)
def test_only_a_changing_command_needs_its_result_checked(line: str, changes: bool) -> None:
    name, *words = line.split()
    settings = Settings()
    settings.kind = name
    assert remote_command.may_change_host(settings, cli.load(name).make_context(name, words, obj=settings)) is changes


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("--host ssh://a --host local list-gpus", "do not go with others"),
        ("--host ssh://a/b list-gpus", "is not the address of a host"),
        ("--host ssh://a completion bash", "completion does not work on other hosts"),
        ("--host ssh://a sim reboot", "sim does not work on other hosts"),
        (
            "--host ssh://a create-vm --profile 4C --cloud-init ud.yaml",
            "--cloud-init: 'ud.yaml' is not an absolute path",
        ),
        ("--host ssh://a refresh-vm v --image /a --from b", "--from: 'b' is not an absolute path"),
        ("--host ssh://a list-images /a b", "PATH: 'b' is not an absolute path"),
        ("--host 'ssh://a{1..3' list-gpus", "--host 'ssh://a{1..3': the braces do not match"),
        ("list-gpus --host 'ssh://a{1}'", "{1} is neither a range nor a list"),
        ("--host 'ssh://a{1..200}{1..200}' list-gpus", "stands for 40000 names; at most 10000 are allowed"),
        ("--host 'ssh://a[01:20]' list-gpus", "  hint: write 'ssh://a{01..20}'"),
        ("--host 'ssh://{a,-b}' list-gpus", "--host ssh://-b: '-b' is not a host name"),
        ("--host 'ssh://a{1..3}' --host local list-gpus", "do not go with others"),
        ("--host sim:t4 --host-deadline 5 list-gpus", "--host-deadline requires"),
        ("list-gpus --host sim:t4 --hosts-at-a-time 5", "--hosts-at-a-time requires"),
        ("--host-deadline 0 --host ssh://a list-gpus", "must be greater than 0"),
        ("--host ssh://a apply -f /nowhere/host.yaml", "there is no spec file"),
        ("--hosts-at-a-time 0 --host ssh://a list-gpus", "--hosts-at-a-time"),
        ("--host sim:t4 install-host --deb /nowhere/vgpuctl.deb", "--deb requires --host ssh://HOST"),
        (
            "--host ssh://a install-host --deb /nowhere/vgpuctl.deb",
            "Debian package /nowhere/vgpuctl.deb does not exist",
        ),
    ],
)
def test_refused_before_anything_connects(vgpuctl: Run, line: str, output: str) -> None:
    ran = vgpuctl(*shlex.split(line))
    assert ran.status == 2
    assert output in ran.err


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("--host ssh://gpu{01..03} list-gpus", "quote the range: vgpuctl --host 'ssh://gpu{01..03}' list-gpus"),
        ("stop-vm a --host ssh://gpu{9..11} -y", "quote the range: vgpuctl stop-vm a --host 'ssh://gpu{9..11}' -y"),
        ("sim --host ssh://gpu{1..2} reboot", "quote the range: vgpuctl sim --host 'ssh://gpu{1..2}' reboot"),
        (
            "--host ssh://{web,db} show-vm 'a b'",
            "repeat --host: vgpuctl --host ssh://web --host ssh://db show-vm 'a b'",
        ),
    ],
)
def test_a_range_without_quotes_is_refused_with_the_line_to_type(vgpuctl: Run, line: str, hint: str) -> None:
    spread = ["bash", "-c", f"printf '%s\\n' {line}"]
    words = subprocess.run(spread, capture_output=True, text=True, check=True).stdout.splitlines()
    ran = vgpuctl(*words)
    assert (ran.status, ran.out) == (2, "")
    assert "and --host takes one address: the shell makes several words of a range" in ran.err.splitlines()[0]
    assert ran.err.splitlines()[1] == f"  hint: {hint}"
    assert vgpuctl(*words, "--json").document["error"]["code"] == "usage"


def test_progress_goes_to_stderr_with_json(sim: Run, vgpuctl: Run) -> None:
    ran = vgpuctl("--host", "sim:a100-40", "create-vm", "a", "--profile", "A100-4C", "--json", "--progress")
    assert ran.document["ok"] is True
    assert ran.err.splitlines()[-1] == "[6/6] start VM a"


def test_a_host_behind_the_command_wins_over_one_in_front(vgpuctl: Run) -> None:
    ran = vgpuctl("--host", "ssh://a", "list-gpus", "--host", "sim:a100-40", "--host", "sim:a100-40")
    assert (ran.status, "A100" in ran.out) == (0, True)


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("list-gpus --host ssh://127.0.0.1:2 --host ssh://127.0.0.1:3", ["127.0.0.1:2", "127.0.0.1:3"]),
        ("--host 'ssh://127.0.0.1:{2..4}' list-gpus", ["127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"]),
        ("list-gpus --host='ssh://127.0.0.1:{3,2}' --host ssh://127.0.0.1:2", ["127.0.0.1:3", "127.0.0.1:2"]),
        ("--host 'ssh://127.0.0.1:{2..2}' list-gpus", ["127.0.0.1:2"]),
        ("--host 'ssh://[::{1..1}]:2' list-gpus", ["[::1]:2"]),
        ("list-gpus", ["127.0.0.1:8", "127.0.0.1:9"]),
    ],
)
def test_ranges_and_several_hosts_give_one_result_and_win_over_the_environment(
    vgpuctl: Run, monkeypatch: pytest.MonkeyPatch, line: str, asked: list[str]
) -> None:
    monkeypatch.setenv("VGPUCTL_HOST", "ssh://127.0.0.1:{8..9}")
    ran = vgpuctl("--json", *shlex.split(line))
    assert ran.document["kind"] == "hosts"
    assert [host["host"] for host in ran.document["data"]["hosts"]] == asked


CONTROLS = "\x1b\x07\x9b\u202e\r"
STEERING = f"title{CONTROLS}"
ROW = {**WHOLE, "name": STEERING, "state": STEERING}
NETWORK = {"network": STEERING, "bridge": STEERING, "vlan": 1, "model": STEERING, "mac": STEERING}
VM = {**ROW, "record": None, "planned": {STEERING: STEERING}, "spread_group": STEERING, "firmware": STEERING,
      "networks": [NETWORK], "disks": [],
      "hugepages": STEERING, "pinned_cpus": STEERING, "memory_nodes": STEERING, "display": True,
      "cloud_init": STEERING, "network_config": STEERING,
      "guest_sharing": STEERING, "license": STEERING, "guest_driver": STEERING, "k8s_join": STEERING,
      "domain_join": STEERING, "guest_helper": True}  # fmt: skip
ERROR = {"code": STEERING, "message": STEERING, "hint": STEERING, "facts": {STEERING: STEERING}, "left": [STEERING]}


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize(
    ("kind", "results"),
    [
        ("export", {"ok": True, "data": {"text": f"version: 1 # {STEERING}\n"}}),
        ("import", {"ok": True, "data": {"text": STEERING, "source": STEERING, "left_out": [STEERING]}}),
        ("create-vm", {"ok": True, "data": {"xml": f"<domain>{STEERING}</domain>"}}),
        ("show-vm", {"ok": True, "data": {**VM, STEERING: STEERING}}),
        ("list-vms", {"ok": True, "data": [ROW]}),
        ("list-vms", {"ok": False, "error": ERROR}),
    ],
)
def test_output_of_another_host_is_escaped(
    capsys: pytest.CaptureFixture[str], kind: str, results: dict[str, object], json: bool
) -> None:
    document = {"schema": "vgpuctl/1", "kind": kind, "changed": False, "warnings": [STEERING], **results}
    answered = HostReply(Target("gpu-01", "gpu-01"), 0.1, Reply(document, 0 if results["ok"] else 1, (STEERING,)))
    settings = Settings(json=json, verbose=True)
    settings.kind = kind
    remote_result.print_reply(settings, answered, 0)
    remote_result.print_replies(settings, [answered, answered], 0)
    captured = capsys.readouterr()
    assert "title" in captured.out + captured.err
    assert not {*CONTROLS} & {*captured.out, *captured.err}


VMS = [{**WHOLE, "name": "b", "state": "stopped"}, {**WHOLE, "name": "a", "more": 1}, {**WHOLE, "name": "c"}]


def _listed(capsys: pytest.CaptureFixture[str], output: str, *, hosts: int) -> str:
    settings = Settings()
    settings.kind, settings.output = "list-vms", output
    settings.filter, settings.sort_by, settings.columns = ("state=running",), "-name", ("name", "memory")
    replies = [reply(f"gpu-{number}", VMS) for number in range(hosts)]
    status = remote_result.print_reply(settings, replies[0], 0) if hosts == 1 else 0
    assert status == 0 if hosts == 1 else remote_result.print_replies(settings, replies, 0) == 0
    return capsys.readouterr().out


def test_rows_of_other_hosts_are_filtered_and_shown_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split()[0] for line in _listed(capsys, "table", hosts=1).splitlines()] == ["NAME", "c", "a"]
    assert _listed(capsys, "name", hosts=1) == "c\na\n"
    assert [(row["name"], row.get("more")) for row in loads(_listed(capsys, "json", hosts=1))["data"]] == [
        ("c", None), ("a", 1),
    ]  # fmt: skip
    assert "\n- name: c\n" in _listed(capsys, "yaml", hosts=1)
    assert [line.split()[:2] for line in _listed(capsys, "table", hosts=2).splitlines()] == [
        ["HOST", "NAME"], ["gpu-0", "c"], ["gpu-0", "a"], ["gpu-1", "c"], ["gpu-1", "a"],
    ]  # fmt: skip
    assert [line.rpartition(",")[0] for line in _listed(capsys, "csv", hosts=2).splitlines()] == [
        "host,name", "gpu-0,c", "gpu-0,a", "gpu-1,c", "gpu-1,a",
    ]  # fmt: skip
    documents = [host["document"] for host in loads(_listed(capsys, "json", hosts=2))["data"]["hosts"]]
    assert [[row["name"] for row in document["data"]] for document in documents] == [["c", "a"]] * 2


def test_options_about_the_page_are_not_forwarded() -> None:
    line = "-o csv list-vms --columns name,uuid --filter state=running --sort-by=-name --no-headers --color never -v"
    command = cli.load("list-vms")
    assert remote_command.forward_args(line.split(), command, cli.params).args == ("list-vms", "-v")
