# SPDX-License-Identifier: Apache-2.0
"""GPUs in host.yaml: by address, by model or all of them, with MIG and a scheduler; each error has its line."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_schema import host_schema
from vgpuctl.config.gpu_spec import (
    POLICIES,
    dump_mig,
    dump_scheduler,
    parse_mig_options,
    parse_mig_spec,
    parse_scheduler_spec,
)
from vgpuctl.config.host_spec import (
    GPU_SHAPE,
    GpuSpec,
    list_models,
    merge_gpu_entries,
    parse_host_spec,
    plan_entry_changes,
)
from vgpuctl.config.yaml_reader import load_document
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import Gpu, GpuMode, MigSpec
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.value import replace

A16 = Gpu("0000:17:00.0", "/sys/17", "NVIDIA A16", "nvidia", None, GpuMode.VGPU)
A100 = Gpu("0000:3b:00.0", "/sys/3b", "NVIDIA A100-PCIE-40GB", "nvidia", None, GpuMode.VGPU)


def gpus(text):
    return parse_host_spec(f"version: 1\ngpus:\n{text}", "host.yaml").gpus


def test_the_address_counts_before_the_model_and_the_model_before_all():
    output = gpus(
        '  "0000:3b:00.0": {cordoned: false}\n  A100: {cordoned: true, reserved_for: lab-*}\n'
        "  all: {mode: vgpu, reserved_for: [vdi-*]}\n"
    )
    assert merge_gpu_entries(output, A100) == GpuSpec("vgpu", cordoned=False, reserved_for=("lab-*",))
    assert merge_gpu_entries(output, A16) == GpuSpec("vgpu", reserved_for=("vdi-*",))
    assert list_models(output) == ("A100",)


def test_of_two_models_the_one_further_down_counts():
    first, second = "  A100: {cordoned: true}\n", "  A100-PCIE-40GB: {cordoned: false}\n"
    assert merge_gpu_entries(gpus(first + second), A100).cordoned is False
    assert merge_gpu_entries(gpus(second + first), A100).cordoned is True


def test_vfs_go_with_the_mode():
    output = gpus('  all: {mode: sriov, vfs: 4}\n  A16: {vfs: 2}\n  "3b:00.0": {mode: vgpu}\n')
    assert merge_gpu_entries(output, A16) == GpuSpec("sriov", 2)
    assert merge_gpu_entries(output, A100) == GpuSpec("vgpu")
    amd = gpus("  all: {mode: sriov, vfs: 8, compute_partition: CPX}\n  A100: {mode: vgpu}\n")
    assert merge_gpu_entries(amd, A100) == GpuSpec("vgpu")
    assert merge_gpu_entries(amd, A16).compute_partition == "CPX"


def test_all_and_models_exclude_other_devices_and_gpus_without_pci_address():
    output = gpus("  all: {cordoned: true}\n  card: {mode: unmanaged}\n")
    card = replace(A16, model="A card", is_display_class=False)
    assert merge_gpu_entries(output, card) == GpuSpec()
    assert merge_gpu_entries(gpus('  "0000:17:00.0": {cordoned: true}\n'), card) == GpuSpec(cordoned=True)
    assert merge_gpu_entries(output, replace(A16, address="mtty", model="mtty")) == GpuSpec()


@pytest.mark.parametrize("key", ["3b:00", "0000:3b:00.9", "2460.0", '"12:"'])
def test_an_invalid_address_is_no_model(key):
    with pytest.raises(InvalidInput, match=r"host\.yaml:3"):
        gpus(f"  {key}: {{mode: vgpu}}\n")


@pytest.mark.parametrize(
    ("text", "wanted", "changes"),
    [
        ("  all: {mode: vgpu}\n", {"mode": "vgpu", "vfs": None}, {}),
        ("  all: {mode: sriov, vfs: 4}\n", {"mode": "vgpu", "vfs": None}, {"mode": "vgpu", "vfs": None}),
        ("  A16: {cordoned: true}\n", {"cordoned": None}, {"cordoned": False}),
        ('  "17:00.0": {cordoned: true}\n', {"cordoned": None}, {"cordoned": None}),
        ("  all: {cordoned: false}\n", {"cordoned": None}, {}),
        ("  all: {cordoned: false}\n", {"cordoned": True}, {"cordoned": True}),
    ],
)
def test_a_gpus_own_entry_adds_what_the_others_leave_out(text, wanted, changes):
    output = gpus(text)
    result, _ = plan_entry_changes(output, A16, wanted)
    assert result == changes
    own = {**{k: getattr(output.get(A16.address, GpuSpec()), k) for k in wanted}, **result}
    now = merge_gpu_entries({**output, A16.address: GpuSpec(**own)}, A16)
    assert all((getattr(now, key) or None) == value for key, value in wanted.items())


def test_the_documented_host_file_is_valid():
    text = (Path(__file__).parents[3] / "docs" / "reference" / "host-file.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    spec = parse_host_spec(example, "docs/reference/host-file.md")
    jsonschema.validate(load_document(example, "n").value, host_schema())
    assert merge_gpu_entries(spec.gpus, A16).profiles == ("A16-2Q", "A16-4Q")
    assert merge_gpu_entries(spec.gpus, A100).reserved_for == ("*",)
    assert all(f"| `{key}` |" in text for key in GPU_SHAPE.names)


MIG_HOST = 'version: 1\ngpus:\n  "0000:3b:00.0":\n    mode: vgpu\n    mig: {}\n'


@pytest.mark.parametrize("text", ["off", "OFF", "false", '"off"'])
def test_off_and_its_yaml_1_1_forms_turn_mig_off(text):
    (output,) = parse_host_spec(MIG_HOST.replace("{}", text), "f").gpus.values()
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
    (output,) = parse_host_spec(MIG_HOST.replace("{}", text), "f").gpus.values()
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
        parse_host_spec(MIG_HOST.replace("{}", text), "f")


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
        parse_host_spec(MIG_HOST.replace("mig: {}", setting), "f")
    parse_host_spec(MIG_HOST.replace("mig: {}", "mig: off\n    mixed_size: true"), "f")


def test_mig_options_have_counts():
    assert parse_mig_options(("3g.40gb", "1g.10gb:2"), ()) == MigSpec(("3g.40gb", "1g.10gb", "1g.10gb"))
    assert parse_mig_options((), ("H100-1-10C:2", "H100-1-10C")) == MigSpec(vgpus=(("H100-1-10C", 3),))
    assert parse_mig_options((), ()) == MigSpec()
    for instances, vgpus in (
        (("1g.10gb:0",), ()), (("1g.10gb:x",), ()), (("7",) * 17, ()), ((), ("A-1C:999",)), ((), ("1g.5gb:1",)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            parse_mig_options(instances, vgpus)


GPU = "0000:3b:00.0"


def scheduler_of(text):
    return parse_host_spec(f'version: 1\ngpus:\n  "{GPU}":\n    scheduler: {text}\n', "host.yaml").gpus[GPU].scheduler


def test_every_key():
    assert scheduler_of("{policy: fixed_share, time_slice_ms: 2}") == SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 2)
    whole = scheduler_of("{policy: equal_share, frequency_hz: 480, averaging_factor: 33}")
    assert whole == SchedulerSpec(SchedulerPolicy.EQUAL_SHARE, None, 480, 33)
    assert isinstance(whole.policy, SchedulerPolicy)
    assert scheduler_of("null") is None


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("{}", "policy: missing"),
        ("{policy: fair}", "is not best_effort, equal_share or fixed_share"),
        ("{policy: equal_share, time_slice: 2}", "did you mean 'time_slice_ms'"),
        ("{policy: equal_share, time_slice_ms: 0}", "0 is not between 1 and 100000"),
        ("{policy: equal_share, time_slice_ms: 2.5}", "is not a whole number"),
        ("{policy: equal_share, time_slice_ms: 2, frequency_hz: 480}", "cannot be combined"),
        ("{policy: equal_share, time_slice_ms: 2, averaging_factor: 3}", "cannot be combined"),
        ("{policy: best_effort, frequency_hz: 480}", "best_effort has neither"),
        ("equal_share", "expected a mapping"),
    ],
)
def test_an_invalid_scheduler_has_its_line(text, output):
    with pytest.raises(InvalidInput, match=r"host\.yaml:4:") as raised:
        scheduler_of(text)
    assert output in str(raised.value)


numbers = st.none() | st.integers(1, 255)


@given(st.sampled_from(POLICIES), numbers, numbers, numbers)
def test_what_is_read_is_written_again(policy, slice_ms, hertz, factor):
    given_ = {"policy": policy, "time_slice_ms": slice_ms, "frequency_hz": hertz, "averaging_factor": factor}
    try:
        spec = parse_scheduler_spec(given_)
    except ValueError:
        assert policy == "best_effort" or slice_ms is not None
        return
    assert parse_scheduler_spec(dump_scheduler(spec)) == spec
    assert dump_scheduler(spec) == {key: value for key, value in given_.items() if value is not None}
