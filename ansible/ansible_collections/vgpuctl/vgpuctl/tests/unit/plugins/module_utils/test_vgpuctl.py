# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What all modules share: words of options, addresses that YAML made numbers of, errors, and the sides of a diff."""

from __future__ import annotations

import json

import pytest
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils import vgpuctl


class Ended(Exception):
    """A module ended with these values."""

    def __init__(self, **values):
        super().__init__(values)
        self.values = values


class Module:
    """Ansible's own side, played: a host on which the program prints `out`."""

    def __init__(self, out="", err="", status=0, program="/bin/vgpuctl"):
        self.params = {"executable": None, "gpu": None, "all": None}
        self.argument_spec = {
            "all": {"type": "bool"},
            "scheduler": {"type": "str"},
            "not_gpu": {"type": "list"},
            "vgpu_params": {"type": "dict"},
        }
        self.found, self.ran, self.warned = program, None, []
        self.answer = (status, out, err)

    def get_bin_path(self, name, opt_dirs=None):
        return self.found

    def run_command(self, words, **how):
        self.ran = (words, how["data"])
        return self.answer

    def warn(self, text):
        self.warned.append(text)

    def fail_json(self, **values):
        raise Ended(**values)


EMPTY = {"schema": "vgpuctl/1", "changed": False, "warnings": []}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"vfs": 4, "drain": True}, ["--vfs", "4", "--drain"]),
        ({"vfs": None, "drain": False}, []),
        ({"vfs": 0, "drain": True}, ["--vfs", "0", "--drain"]),
        ({"time_slice": 2}, ["--time-slice", "2"]),
        ({"gpu": ["A100", "A16"]}, ["--gpu", "A100", "--gpu", "A16"]),
        ({"gpu": []}, []),
        ({"name": "--yes; rm"}, ["--name", "--yes; rm"]),
    ],
)
def test_options_become_words(params, words):
    assert vgpuctl.flags(params, *params) == words


@pytest.mark.parametrize("value", [None, "A100", "0000:41:00.0", ["A100", "0000:01:00.0"], [], "41.", "1.2.3"])
def test_what_names_a_gpu_is_handed_on(value):
    assert vgpuctl.text_of(Module(), "gpu", value) == value


@pytest.mark.parametrize("value", [2460.0, 60, "2460.0", ["A100", 3660.0], True])
def test_a_number_that_yaml_made_of_an_address_ends_the_module(value):
    with pytest.raises(Ended) as ended:
        vgpuctl.text_of(Module(), "gpu", value)
    told = ended.value.values
    assert told["code"] == "unquoted-address"
    assert told["msg"].startswith("gpu: YAML turned it into the number ")
    assert told["msg"].endswith("Quote the PCI address: gpu: '0000:41:00.0'")


@pytest.mark.parametrize("value", [{"A100": None}, [{"A100": {"mode": "vgpu"}}]])
def test_keys_and_values_in_the_place_of_a_gpu_are_not_said_to_be_a_number(value):
    with pytest.raises(Ended) as ended:
        vgpuctl.text_of(Module(), "gpu", value)
    assert ended.value.values["msg"].startswith("gpu: expected a GPU's address or model, not keys and values")


@pytest.mark.parametrize(
    ("value", "said"), [([{"A100": {"mode": "vgpu"}}], "there is a list"), ("A100", "there is 'A100'")]
)
def test_what_is_no_mapping_of_gpus_is_told_with_one_that_is(value, said):
    with pytest.raises(Ended) as ended:
        vgpuctl.mapping_of(Module(), "spec.gpus", value)
    told = ended.value.values
    assert (told["code"], told["msg"].startswith("spec.gpus: each GPU is a key")) == ("invalid-input", True)
    assert told["msg"].endswith(f"as in {{A16: {{mode: vgpu}}}}; {said}")


ERROR = {
    "code": "not-found",
    "message": "no VM a",
    "hint": "vgpuctl list-vms",
    "facts": {"vm": "a"},
    "exit_status": 2,
    "undone": [],
    "left": [],
}
FAILED = json.dumps({"schema": "vgpuctl/1", "ok": False, "changed": True, "warnings": ["w"], "error": ERROR})


def test_an_error_is_told_with_its_code_hint_facts_and_what_was_changed():
    module = Module(FAILED, status=2)
    with pytest.raises(Ended) as ended:
        vgpuctl.ask(module, ["show-vm", "a"])
    told = ended.value.values
    assert told["msg"] == "no VM a   [not-found]\nhint: vgpuctl list-vms"
    assert (told["code"], told["facts"], told["hint"]) == ("not-found", {"vm": "a"}, "vgpuctl list-vms")
    assert (told["rc"], told["changed"], told["left"]) == (2, True, [])
    assert module.warned == ["w"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("specify one: 0000:3b:00.0; --all selects all", "specify one: 0000:3b:00.0; all: true selects all"),
        ("--scheduler equal_share excludes 1 of 1 GPUs", "scheduler equal_share excludes 1 of 1 GPUs"),
        ("--not-gpu A16: --vgpu-param is wrong", "not_gpu A16: vgpu_params is wrong"),
        ("standard input:1:10: name: '-x' is not a name", "the task's arguments: name: '-x' is not a name"),
        ("standard input has 3 problems", "the task's arguments have 3 problems"),
        ("--set gpus[A16].mode: no such mode", "gpus[A16].mode: no such mode"),
        ("--unknown-option stays, a--all and ---all too", "--unknown-option stays, a--all and ---all too"),
        ("omit --all; vgpuctl set-scheduler --all shows it", "omit all: true; vgpuctl set-scheduler --all shows it"),
    ],
)
def test_texts_of_the_command_line_become_those_of_a_task(text, told):
    assert vgpuctl.in_module_words(Module(), text) == told


@pytest.mark.parametrize(
    ("hint", "told"),
    [
        (None, None),
        ("'vgpuctl ensure-vm --help' shows the usage", None),
        ("omit --all; 'vgpuctl set-mode --help' shows the usage", "omit all: true"),
        ("vgpuctl list-vms", "vgpuctl list-vms"),
    ],
)
def test_a_hint_names_no_help_of_a_command(hint, told):
    assert vgpuctl.hint_in_module_words(Module(), hint) == told


def test_the_details_of_an_error_are_in_its_message_up_to_a_limit():
    error = {**ERROR, "hint": None, "facts": {"details": [f"--all {n}" for n in range(12)]}}
    with pytest.raises(Ended) as ended:
        vgpuctl.ask(Module(json.dumps({**json.loads(FAILED), "error": error}), status=1), ["ensure-vm"])
    lines = ended.value.values["msg"].splitlines()
    assert (len(lines), lines[1], lines[-1]) == (12, "  all: true 0", "  and 2 more lines; facts has all")
    assert len(ended.value.values["facts"]["details"]) == 12


def test_one_gpu_or_all_are_named():
    module = Module()
    with pytest.raises(Ended) as ended:
        vgpuctl.gpu_words(module)
    assert ended.value.values["code"] == "invalid-input"
    module.params["gpu"] = "-A16"
    assert vgpuctl.gpu_words(module) == ["--", "-A16"]
    module.params = {"gpu": None, "all": True}
    assert vgpuctl.gpu_words(module) == ["--all"]


def test_what_may_be_absent_is_no_error():
    assert vgpuctl.ask(Module(FAILED, status=2), ["show-vm", "a"], absent=[])["data"] == []


def test_the_program_is_asked_for_one_document_and_no_question():
    module = Module('{"schema": "vgpuctl/1", "ok": true, "changed": false, "warnings": [], "data": 1}')
    vgpuctl.ask(module, ["apply", "--file", "-"], "{}")
    assert module.ran == (["/bin/vgpuctl", "--json", "--yes", "apply", "--file", "-"], "{}")


@pytest.mark.parametrize(
    ("facts", "may_stop_vms", "runs"),
    [({"lines": ["a goes"]}, True, 1), ({"vms": ["vdi-1"]}, False, 1), ({"vms": ["vdi-1"]}, True, 2)],
)
def test_of_two_questions_only_the_one_about_running_vms_is_answered(facts, may_stop_vms, runs):
    error = {"code": "needs-confirmation", "message": "may it?", "hint": None, "facts": facts, "exit_status": 2}
    module, lines = Module(json.dumps({**EMPTY, "ok": False, "error": error}), status=2), []
    answer = module.answer

    def run_command(words, **how):
        lines.append(words)
        return (0, json.dumps({**EMPTY, "ok": True, "data": 1}), "") if "--yes" in words else answer

    module.run_command = run_command
    if runs == 2:
        assert vgpuctl.ask(module, ["apply"], consent="say so", may_stop_vms=may_stop_vms)["data"] == 1
    else:
        with pytest.raises(Ended) as ended:
            vgpuctl.ask(module, ["apply"], consent="say so", may_stop_vms=may_stop_vms)
        assert ended.value.values["hint"] == "say so"
    assert lines == [["/bin/vgpuctl", "--json", *yes, "apply"] for yes in ([], ["--yes"])[:runs]]


@pytest.mark.parametrize(
    ("module", "code", "said"),
    [
        (Module(program=None), "no-vgpuctl", "vgpuctl is not on this host"),
        (Module(err="Traceback"), "no-json", "/bin/vgpuctl printed no JSON: Traceback"),
        (Module("[]"), "no-json", "printed no document: []"),
        (Module('{"schema": "vgpuctl/2"}'), "other-schema", "prints vgpuctl/2, but this collection needs vgpuctl/1"),
    ],
)
def test_another_program_is_told_from_vgpuctl(module, code, said):
    with pytest.raises(Ended) as ended:
        vgpuctl.ask(module, ["list-vms"])
    assert (ended.value.values["code"], said in ended.value.values["msg"]) == (code, True)


def test_a_diff_has_both_sides_and_the_plan():
    work = {"steps": ["one", "two"], "before": None, "after": {"state": "running"}}
    sides, plan = vgpuctl.differences({}, work)
    assert sides == {"before": {}, "after": {"state": "running"}}
    assert (plan["before"], plan["after"]) == ("", "one\ntwo\n")
    assert len(vgpuctl.differences({}, {"steps": []})) == 1


def test_a_diff_of_several_vms_and_of_a_host_is_made_of_their_rows():
    results = {"a": "created", "b": "unchanged", "c": "deleted", "d": "started", "e": "stopped"}
    vms = {"vms": [{"name": name, "result": result} for name, result in results.items()]}
    assert vgpuctl.differences(vms, {"steps": []})[0] == {
        "before": {"b": "there", "c": "there", "d": "off", "e": "running"},
        "after": {"a": "there", "b": "there", "d": "running", "e": "off"},
    }
    gpus = {"targets": [{"name": "0000:3b:00.0", "data": {"before": {"mode": None}, "after": {"mode": "vgpu"}}}]}
    assert vgpuctl.differences(gpus, {"steps": []})[0] == {
        "before": {"0000:3b:00.0": {"mode": None}},
        "after": {"0000:3b:00.0": {"mode": "vgpu"}},
    }
    adopted = {"targets": [{"name": "old-desktop", "data": {"ownership": "managed"}}]}
    assert [side["after"] for side in vgpuctl.differences(adopted, {"steps": ["one"]})] == ["one\n"]
    row = {"key": "mode", "is": None, "wanted": "vgpu"}
    host = {
        "gpus": [{"address": "0000:3b:00.0", "differences": [row]}],
        "settings": [{**row, "key": "placement.policy"}],
    }
    assert vgpuctl.differences(host, {"steps": []})[0] == {
        "before": {"0000:3b:00.0 mode": None, "host placement.policy": None},
        "after": {"0000:3b:00.0 mode": "vgpu", "host placement.policy": "vgpu"},
    }
