# SPDX-License-Identifier: Apache-2.0
"""A secret that stands where a file's path is expected, or in a spec, is in no message, fact, log or record."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run
from vgpuctl import open_host
from vgpuctl.errors import VgpuctlError

HOST = ("--host", "sim:a100-40")
SECRET = "hunter2"
IMAGE = "/srv/images/ubuntu-24.04.qcow2"

CONTENTS = {
    "cloud-config": f"#cloud-config\npassword: {SECRET}\n",
    "cloud-config in one line": f"#cloud-config password={SECRET}",
    "a key and a value": f"password: {SECRET}",
    "JSON": f'{{"chpasswd": "{SECRET}"}}',
    "several lines that begin with a slash": f"/\npassword={SECRET}",
    "a relative path of several lines": f"a/b\n{SECRET}",
    "XML": f"<unattend>{SECRET}</unattend>",
    "a join blob": "QVJBSQ" + SECRET + "A" * 200,
    "invisible characters": f"/root/\x1b[0m{SECRET}",
}
"""What people write in place of a path."""

_BLOCK = f"#cloud-config\n  password: {SECRET}\n"
SPECS = {
    "a block of text": f"cloud_init: |\n  {_BLOCK}",
    "a folded block": f"cloud_init: >\n  {_BLOCK}",
    "a mapping": f"cloud_init: {{password: {SECRET}}}\n",
    "a list": f"cloud_init: ['#cloud-config', {SECRET}]\n",
    "a relative path": f"cloud_init: {SECRET}.yaml\n",
    "network_config as text": f"network_config: |\n  version: 2\n  wifis: {{w: {{password: {SECRET}}}}}\n",
    "network_config as a list": f"network_config: [{SECRET}]\n",
    "network_config of no version": f"network_config: {{wifis: {{w: {{password: {SECRET}}}}}}}\n",
    "network_config that JSON cannot hold": f"network_config: {{version: 2, a: .inf, b: {SECRET}}}\n",
    "a tag": f"cloud_init: {{password: !{SECRET} x}}\n",
    "a tag that is the value": f"network_config: {{password: !{SECRET}}}\n",
    "an alias": f"network_config: {{password: *{SECRET}}}\n",
    "an anchor twice": f"network_config: {{a: &{SECRET} x, b: *{SECRET}}}\n",
    "a tag handle": f"network_config: {{password: !x{SECRET}!y}}\n",
    "a directive": f"%{SECRET}\n---\na: b\n",
    "a broken quote": f'cloud_init: "{SECRET}\n',
    "a wrong escape": f'cloud_init: "\\q{SECRET}"\n',
    "a wrong number of digits": f'cloud_init: "\\x{SECRET}"\n',
    "a surrogate": f'cloud_init: "\\U00ffffff{SECRET}"\n',
    "a tab": f"cloud_init:\n\tpassword: {SECRET}\n",
    "text after a quote": f'network_config: {{password: "a" {SECRET}}}\n',
    "an open bracket": f"cloud_init: [{SECRET}\n",
    "a block that is not indented": f"cloud_init: |\n#cloud-config\npassword: {SECRET}\n",
    "a character that YAML does not have": f"cloud_init: {SECRET}\x01\n",
}
"""What people write in a spec."""


def _written(tmp_path: Path) -> str:
    """Return everything that the simulated host keeps, its audit journal included."""
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    return "".join(path.read_text(errors="replace") for path in files)


@pytest.mark.parametrize("form", SPECS)
@pytest.mark.parametrize("options", [("-v",), ("--json",)])
def test_a_spec_is_not_quoted(vgpuctl: Run, tmp_path: Path, form: str, options: tuple[str, ...]) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"profile: A100-4C\nname: web\n{SPECS[form]}" if "directive" not in form else SPECS[form])
    ran = vgpuctl(*HOST, *options, "ensure-vm", "-f", str(spec))
    assert ran.status == 2
    assert SECRET not in ran.out + ran.err + _written(tmp_path)
    assert "spec.yaml:" in ran.out + ran.err or "in the spec" in ran.out + ran.err  # where it is


@pytest.mark.parametrize("form", CONTENTS)
@pytest.mark.parametrize("option", ["--cloud-init", "--network-config"])
@pytest.mark.parametrize("options", [("-v",), ("--json",)])
def test_an_option_is_not_quoted(
    vgpuctl: Run, tmp_path: Path, form: str, option: str, options: tuple[str, ...]
) -> None:
    for words in ((option, CONTENTS[form]), (f"{option}={CONTENTS[form]}",)):
        ran = vgpuctl(*HOST, *options, "create-vm", "web", "--profile", "A100-4C", *words)
        assert ran.status == 2
        assert f"{option}: expected the absolute path of a file, not its content" in ran.out + ran.err
        assert SECRET not in ran.out + ran.err + _written(tmp_path)
    assert "--cloud-init" in _written(tmp_path) or "--network-config" in _written(tmp_path)  # the entry itself is there


@pytest.mark.parametrize("form", CONTENTS)
@pytest.mark.parametrize("field", ["cloud_init", "network_config"])
def test_the_library_does_not_quote_it(tmp_path: Path, form: str, field: str) -> None:
    host = open_host("sim:a100-40")
    with pytest.raises(VgpuctlError) as caught:
        host.create_vm("web", profile="A100-4C", **{field: CONTENTS[form]})
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + json.dumps(caught.value.facts)
    assert SECRET not in _written(tmp_path)


def test_a_network_configuration_in_the_spec_is_named_by_its_checksum(sim: Run, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    config = f"{{version: 2, ethernets: {{lan: {{match: {{name: 'e*'}}, dhcp4: true}}}}, x: {SECRET}}}"
    spec.write_text(f"name: web\nprofile: A100-4C\nnetwork_config: {config}\nimage: {IMAGE}\n")
    for line in (f"ensure-vm -f {spec} --dry-run", f"ensure-vm -f {spec}", "show-vm web"):
        ran = sim(line)
        assert ran.status == 0, ran.err
        assert SECRET not in ran.out + ran.err
    audit = next((tmp_path / "state").rglob("audit.jsonl")).read_text()
    assert SECRET not in audit
    assert "in the spec (sha256 " in audit
