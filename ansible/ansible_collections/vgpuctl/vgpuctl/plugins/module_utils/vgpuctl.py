# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run vgpuctl on the managed host, and make a module's result of the one JSON document that it prints.

Nothing here knows a rule about GPUs or VMs: what is allowed, what differs and what is done is vgpuctl's to say. Only
the standard library is needed on the host.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule

SCHEMA = "vgpuctl/1"
PLACES = ["/opt/vgpuctl/bin"]
PROGRAM: dict[str, Any] = {"executable": {"type": "path"}}
COMMON: dict[str, Any] = {**PROGRAM, "wait": {"type": "float"}}
ONE_GPU_OR_ALL: dict[str, Any] = {"required_one_of": [("gpu", "all")], "mutually_exclusive": [("gpu", "all")]}
NUMBER = re.compile(r"^[0-9]+\.[0-9]+$")
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)")
STANDARD_INPUT = re.compile(r"standard input(:[0-9]+:[0-9]+)?")
MAX_LINES = 10
"""At most this many lines of an error's details are part of its message; its facts have all of them."""


def flags(params: dict[str, Any], *options: str) -> list[str]:
    """Return the words of a command line for options that are called as the module's."""
    words: list[str] = []
    for option in options:
        value, flag = params[option], "--" + option.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            for one in value if isinstance(value, list) else [value]:
                words += [flag, str(one)]
    return words


def text_of(module: AnsibleModule, option: str, value: Any) -> Any:
    """Return what names a GPU, or several in a list, which must be text; the module ends here when it is not.

    YAML 1.1 reads some PCI addresses as numbers to the base 60: 0000:41:00.0 is 2460.0, but 0000:84:00.0 stays text.
    """
    if value is None or (isinstance(value, str) and not NUMBER.match(value)):
        return value
    if isinstance(value, list):
        return [text_of(module, option, one) for one in value]
    if isinstance(value, dict):
        module.fail_json(
            msg=f"{option}: expected a GPU's address or model, not keys and values: {value}",
            code="invalid-input",
        )
    return module.fail_json(
        msg=f"{option}: YAML turned it into the number {value}. Quote the PCI address: {option}: '0000:41:00.0'",
        code="unquoted-address",
        facts={"option": option, "value": value},
    )


def gpu_words(module: AnsibleModule) -> list[str]:
    """Return the words that name one GPU, or all; the module ends here if `gpu` is a number, or neither is given."""
    if module.params["all"]:
        return ["--all"]
    if module.params["gpu"] is None:
        module.fail_json(msg="gpu: missing, and all is not true: specify one of them", code="invalid-input")
    return ["--", str(text_of(module, "gpu", module.params["gpu"]))]


def mapping_of(module: AnsibleModule, option: str, value: Any) -> dict[Any, Any]:
    """Return a mapping by GPU; the module ends here if the option is not a mapping."""
    if isinstance(value, dict):
        return value
    return module.fail_json(
        msg=f"{option}: each GPU is a key, and its keys and values are below it, as in {{A16: {{mode: vgpu}}}};"
        f" there is {'a list' if isinstance(value, list) else repr(value)}",
        code="invalid-input",
        facts={"option": option},
    )


def in_module_words(module: AnsibleModule, text: str) -> str:
    """Return a text of the command line in the words of a task; a command in it (`vgpuctl ...`) stays as it is.

    An option of the command becomes the module's of the same name, if there is one. What vgpuctl reads from standard
    input are the task's arguments; the line and column there mean nothing to the user.
    """
    return "; ".join(_clause_in_module_words(module, clause) for clause in text.split("; "))


def _clause_in_module_words(module: AnsibleModule, clause: str) -> str:
    def option(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        known = next((one for one in (name, name + "s") if one in module.argument_spec), None)
        if known is None:
            return match[0]
        return f"{known}: true" if module.argument_spec[known].get("type") == "bool" else known

    sentence, command, rest = clause.partition("vgpuctl ")
    sentence = sentence.replace("standard input has", "the task's arguments have").replace("--set gpus", "gpus")
    sentence = STANDARD_INPUT.sub("the task's arguments", sentence)
    return OPTION.sub(option, sentence) + command + rest


def hint_in_module_words(module: AnsibleModule, hint: str | None) -> str | None:
    """Return a hint in the words of a task, without clauses that point to a command's --help; None if nothing is left.

    The module's own documentation says what the command's help would.
    """
    clauses = [clause for clause in (hint or "").split("; ") if "--help" not in clause]
    return in_module_words(module, "; ".join(clauses)) or None


def ask(
    module: AnsibleModule,
    words: list[str],
    data: str | None = None,
    absent: Any = None,
    consent: str | None = None,
    may_stop_vms: bool = False,
) -> dict[str, Any]:
    """Run vgpuctl and return its document; the module ends here when vgpuctl failed.

    `data` is its standard input; `absent` the data to return when it says that there is no such thing. `consent`: the
    hint when vgpuctl asks a question; None answers each with yes. `may_stop_vms`: the question whether VMs may be shut
    down, which is the last one, is answered with yes anyway.
    """
    program = module.params["executable"] or module.get_bin_path("vgpuctl", opt_dirs=PLACES)
    if program is None:
        module.fail_json(
            msg="vgpuctl is not on this host. The role vgpuctl.vgpuctl.vgpuctl installs it; or set executable",
            code="no-vgpuctl",
        )
    yes = ["--yes"] if consent is None else []
    status, out, err = _run(module, [program, "--json", *yes, *words], data)
    try:
        document: dict[str, Any] = json.loads(out)
    except ValueError:
        module.fail_json(msg=f"{program} printed no JSON: {(err or out).strip()}", code="no-json", rc=status)
    if not isinstance(document, dict):
        module.fail_json(msg=f"{program} printed no document: {out.strip()}", code="no-json", rc=status)
    if document.get("schema") != SCHEMA:
        module.fail_json(
            msg=f"{program} prints {document.get('schema')}, but this collection needs {SCHEMA}", code="other-schema"
        )
    for warning in document["warnings"]:
        module.warn(in_module_words(module, warning))
    error = document.get("error")
    if error is None:
        return document
    if absent is not None and error["code"] == "not-found":
        return {**document, "data": absent}
    if may_stop_vms and yes == [] and error["code"] == "needs-confirmation" and error["facts"].get("vms"):
        return ask(module, words, data, absent)
    error["hint"] = hint_in_module_words(module, error["hint"])
    if error["code"] == "needs-confirmation":
        lines, error["hint"] = error["facts"].get("lines", []), consent or error["hint"]
    else:
        lines = _first_lines(error["facts"].get("details", []))
    hint = f"\nhint: {error['hint']}" if error["hint"] else ""
    told = {name: value for name, value in error.items() if name != "message"}
    message = f"{in_module_words(module, error['message'])}   [{error['code']}]"
    return module.fail_json(
        msg="\n  ".join([message, *(in_module_words(module, str(line)) for line in lines)]) + hint,
        rc=status,
        changed=document["changed"],
        **told,
    )


def _first_lines(lines: list[Any]) -> list[Any]:
    more = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], f"and {more} more lines; facts has all"] if more > 0 else lines


def _run(module: AnsibleModule, words: list[str], data: str | None) -> tuple[int, str, str]:
    """Run a program and return its exit status and what it printed; the module ends here when it cannot be started.

    One that ends before it has read `data`, as by a word of the line that it does not know, reports why: then that is
    returned, and not Ansible's "Broken pipe".
    """
    begun: list[Any] = []
    try:
        ran: tuple[int, str, str] = module.run_command(
            words, data=data, handle_exceptions=False, before_communicate_callback=begun.append
        )
        return ran
    except BrokenPipeError:
        out, err = begun[0].communicate()
        return begun[0].returncode, out.decode(errors="replace"), err.decode(errors="replace")
    except OSError as error:
        return module.fail_json(msg=f"{words[0]} cannot be run: {error.strerror}", code="cannot-run", rc=error.errno)


def change(
    module: AnsibleModule,
    words: list[str],
    data: str | None = None,
    name: str = "vgpuctl",
    consent: str | None = None,
    may_stop_vms: bool = False,
    absent: Any = None,
) -> None:
    """Run a command that changes something, or in check mode only says what it would do, and end the module.

    vgpuctl's result is returned under `name`; `consent`, `may_stop_vms` and `absent` as of `ask`.
    """
    dry = ["--dry-run"] if module.check_mode else []
    line = [words[0], *flags(module.params, "wait"), *dry, *words[1:]]
    document = ask(module, line, data, absent, consent, may_stop_vms)
    said = document["data"]
    bookkeeping = {
        key: said.pop(key) for key in ("steps", "notes", "dry_run", "before", "after", "sources") if key in said
    }
    result = {"changed": document["changed"], "steps": bookkeeping["steps"], "notes": bookkeeping["notes"], name: said}
    if module._diff:
        result["diff"] = differences(said, bookkeeping)
    module.exit_json(**result)


def differences(said: dict[str, Any], work: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what --diff shows: the states before and after, if vgpuctl reports both, and its plan."""
    plan = {
        "before_header": "plan",
        "after_header": "plan",
        "before": "",
        "after": "".join(f"{s}\n" for s in work["steps"]),
    }
    sides = (work["before"], work["after"]) if "after" in work else _sides(said)
    shown = [] if sides is None else [{"before": sides[0] or {}, "after": sides[1] or {}}]
    return [*shown, plan]


def _sides(said: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return both sides of what several VMs, several GPUs, or a host's GPUs and settings differ in."""
    if "vms" in said:
        states = {"unchanged": ("there", "there"), "created": (None, "there"), "deleted": ("there", None)}
        states |= {"started": ("off", "running"), "stopped": ("running", "off")}
        both = [(vm["name"], *states[vm["result"]]) for vm in said["vms"]]
        return {vm: was for vm, was, _ in both if was}, {vm: now for vm, _, now in both if now}
    if "targets" in said:
        rows = [(target["name"], target["data"]) for target in said["targets"]]
        if not all("after" in row for _, row in rows):
            return None
        return {name: row["before"] for name, row in rows}, {name: row["after"] for name, row in rows}
    if "settings" in said:
        rows = [(gpu["address"], row) for gpu in said["gpus"] for row in gpu["differences"]]
        rows += [("host", row) for row in said["settings"]]
        return (
            {f"{where} {row['key']}": row["is"] for where, row in rows},
            {f"{where} {row['key']}": row["wanted"] for where, row in rows},
        )
    return None
