# SPDX-License-Identifier: Apache-2.0
"""MIG in host.yaml: off, instances, or the vGPUs that must fit; each error has its line."""

from __future__ import annotations

import pytest

from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.config.mig_spec import dump_mig, parse_mig_options, parse_mig_spec
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import MigSpec

HOST = 'version: 1\ngpus:\n  "0000:3b:00.0":\n    mode: vgpu\n    mig: {}\n'


@pytest.mark.parametrize("text", ["off", "OFF", "false", '"off"'])
def test_off_and_its_yaml_1_1_forms_turn_mig_off(text):
    (output,) = parse_host_spec(HOST.replace("{}", text), "f").gpus.values()
    assert output.mig == MigSpec()
    assert dump_mig(output.mig) == "off"


@pytest.mark.parametrize(
    ("text", "mig"),
    [
        ("[1g.10gb, 3G.40GB, MIG 1g.10gb+me, 19]", MigSpec(("1g.10gb", "3g.40gb", "1g.10gb+me", "19"))),
        ("[2g.48gb+gfx, 1g.24gb-me, 1g.24gb+me.all]", MigSpec(("2g.48gb+gfx", "1g.24gb-me", "1g.24gb+me.all"))),
        ("{H100-1-10C: 4, H100-3-40C: 1}", MigSpec(vgpus=(("H100-1-10C", 4), ("H100-3-40C", 1)))),
    ],
)
def test_instances_and_vgpus_are_read_and_written_the_same(text, mig):
    (output,) = parse_host_spec(HOST.replace("{}", text), "f").gpus.values()
    assert output.mig == mig
    assert parse_mig_spec(dump_mig(mig)) == mig


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("true", "f:5:10: gpus.0000:3b:00.0.mig: expected off, a list of GPU instances"),
        ("4", "off, a list of GPU instances"),
        ("[]", "the list is empty: specify at least one GPU instance, or off"),
        ("{}", "the mapping is empty"),
        ("[1g.10gb, 1gb]", r"f:5:20: .*'1gb' is not a GPU instance profile, like 1g.10gb"),
        ("[H100-1-10C]", "is not a GPU instance profile"),
        ("{1g.10gb: 7}", r"is a GPU instance profile: write a list, like \[1g.10gb, 1g.10gb\]"),
        ("{H100-1-10C: 0}", "f:5:23: .*0 is not between 1 and 256"),
        (f"[{', '.join(['1g.5gb'] * 17)}]", "these are 17 GPU instances"),
    ],
)
def test_an_invalid_mig_setting_is_refused(text, message):
    with pytest.raises(InvalidInput, match=message):
        parse_host_spec(HOST.replace("{}", text), "f")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mig: [1g.10gb]\n    mixed_size: true", "mixed sizes and MIG cannot be combined"),
        ("scheduler: {policy: fixed_share}\n    mixed_size: true", "not fixed_share"),
        ("mixed_size: 1", "is not true or false"),
    ],
)
def test_exclusive_mig_settings_are_refused(setting, message):
    with pytest.raises(InvalidInput, match=message):
        parse_host_spec(HOST.replace("mig: {}", setting), "f")
    parse_host_spec(HOST.replace("mig: {}", "mig: off\n    mixed_size: true"), "f")


def test_mig_options_have_counts():
    assert parse_mig_options(("3g.40gb", "1g.10gb:2"), ()) == MigSpec(("3g.40gb", "1g.10gb", "1g.10gb"))
    assert parse_mig_options((), ("H100-1-10C:2", "H100-1-10C")) == MigSpec(vgpus=(("H100-1-10C", 3),))
    assert parse_mig_options((), ()) == MigSpec()
    for instances, vgpus in (
        (("1g.10gb:0",), ()), (("1g.10gb:x",), ()), (("7",) * 17, ()), ((), ("A-1C:999",)), ((), ("1g.5gb:1",)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            parse_mig_options(instances, vgpus)
