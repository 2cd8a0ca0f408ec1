# SPDX-License-Identifier: Apache-2.0
"""Editing host.yaml: text written by people stays unchanged, and the result is a valid host.yaml."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.config.host_assignments import parse_agent_assignment
from vgpuctl.config.host_editor import edit_agent, edit_gpu, edit_vgpu, refuse_lost_comments
from vgpuctl.config.host_spec import GpuSpec, VgpuSpec, parse_host_spec
from vgpuctl.errors import InvalidInput
from vgpuctl.value import replace

NAME = "/etc/vgpuctl/host.yaml"
GPU, OTHER, THIRD = "0000:3b:00.0", "0000:af:00.0", "0000:41:00.0"
SITE = "# ---- defaults of this site: do not remove ----"
WRITTEN = """# ours, ask the GPU team
version: 1   # the format
defaults:
    image: '/srv/images/base.qcow2'
gpus:
    # the old card
    '0000:af:00.0': {mode: passthrough}  # for the lab
    3B:00.0:
        mode: vgpu # day shift
        # broken fan, 2026-10
        cordoned: true
boot: {deadline_seconds: 60}
"""
COMMENTED = """# head
---
version: 1

gpus:
  '0000:af:00.0':
    mode: vgpu
    cordoned: true
  # the new card
  "0000:3b:00.0":
    cordoned: true

# ---- defaults of this site: do not remove ----
defaults:
  image: /srv/images/base.qcow2
# the end
"""
LAYOUTS = (
    COMMENTED,
    WRITTEN,
    "version: 1\ngpus:\n  '0000:af:00.0': {cordoned: true, mode: vgpu}\nboot:\n  deadline_seconds: 60\n",
    "version: 1\ngpus: {\n  '0000:af:00.0': {mode: vgpu,\n    cordoned: true},\n  '0000:3b:00.0': {vfs: 3}\n}\n",
    "defaults:\n  image:\n    /srv/a b\n    c.qcow2\n  os: >-\n    linux\ngpus:\n"
    "  3b:00.0:\n    mode: sriov\n    vfs: 4\nversion: 1\n",
    "version: 1\ngpus:\n  3b:00.0:\n    cordoned: true\n    mode: |-\n      sriov\nboot:\n  deadline_seconds: 60\n",
    "gpus:\n  3b:00.0:\n      cordoned: true\nboot: {deadline_seconds: 60}\nversion: 1\n...\n",
    "{version: 1,\ngpus: {'0000:3b:00.0': {cordoned: true}}}",
)
EDITS = st.tuples(
    st.sampled_from([GPU, OTHER, THIRD]),
    st.dictionaries(st.sampled_from(["mode", "vfs", "cordoned"]), st.booleans(), min_size=1),
).map(lambda pair: (pair[0], {key: VALUES[key] if kept else None for key, kept in pair[1].items()}))
VALUES = {"mode": "sriov", "vfs": 7, "cordoned": True}


def comments(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.lstrip().startswith("#")]


@st.composite
def commented(draw: st.DrawFn) -> str:
    """Return a host.yaml with comment lines and empty lines anywhere between its lines, at any indentation."""
    lines: list[str] = []
    filler = st.lists(st.integers(0, 9), max_size=2)
    for line in [*draw(st.sampled_from(LAYOUTS)).splitlines(), None]:
        if lines[-1:] not in (["    /srv/a b"], ["  os: >-"], ["    mode: |-"]):
            most = 3 if lines[-1:] in (["    linux"], ["      sriov"]) else 8
            lines += [
                f"{' ' * min(at - 1, most)}# c{len(lines)}.{n}" if at else "" for n, at in enumerate(draw(filler))
            ]
        lines += [] if line is None else [line]
    return "\n".join(lines) + "\n"


def test_without_a_file_one_is_made():
    text = edit_gpu(None, GPU, {"mode": "sriov", "vfs": 7, "cordoned": None}, NAME)
    assert text == 'version: 1\ngpus:\n  "0000:3b:00.0":\n    mode: sriov\n    vfs: 7\n'


def test_comments_order_quotes_and_indentation_stay():
    text = edit_gpu(WRITTEN, GPU, {"mode": "unmanaged"}, NAME)
    assert text == WRITTEN.replace("mode: vgpu # day", "mode: unmanaged # day")
    text = edit_gpu(WRITTEN, OTHER, {"mode": "sriov", "vfs": 4}, NAME)
    assert text == WRITTEN.replace("{mode: passthrough}  #", "{mode: sriov, vfs: 4} #")


def test_a_new_gpus_address_is_quoted():
    text = edit_gpu(WRITTEN, "0000:41:00.0", {"cordoned": True}, NAME)
    assert '    "0000:41:00.0":\n        cordoned: true\n' in text


def test_a_gpu_without_any_setting_left_is_removed():
    text = edit_gpu('version: 1\ngpus:\n  "0000:3b:00.0": {cordoned: true}\n', GPU, {"cordoned": None}, NAME)
    assert text == "version: 1\n"


@pytest.mark.parametrize("changes", [{"mode": "vgpu"}, {"cordoned": True}, {"vfs": None}])
def test_an_equal_setting_changes_no_byte(changes):
    assert edit_gpu(WRITTEN, GPU, changes, NAME) is WRITTEN


@pytest.mark.parametrize("text", ["version: 2\n", "gpus: [", "version: 1\nversion: 1\n", "~\n"])
def test_an_invalid_host_yaml_is_refused_and_not_fixed(text):
    with pytest.raises(InvalidInput, match=r"host\.yaml"):
        edit_gpu(text, GPU, {"cordoned": True}, NAME)


def test_a_value_that_host_yaml_does_not_take_is_refused():
    with pytest.raises(InvalidInput, match="vfs"):
        edit_gpu(WRITTEN, GPU, {"vfs": 4000}, NAME)


@pytest.mark.parametrize("text", [WRITTEN, "{version: 1}", "---\nversion: 1\ngpus:\n", "version: 1\ngpus: {}\n"])
@given(
    mode=st.sampled_from(["vgpu", "sriov", "passthrough", "unmanaged", None]),
    vfs=st.none() | st.integers(1, 256),
    cordoned=st.sampled_from([True, False, None]),
    address=st.sampled_from([GPU, OTHER, "0000:41:00.0", "0001:05:00.7"]),
)
def test_an_edit_sets_its_fields_and_changes_no_other(text, mode, vfs, cordoned, address):
    changed = edit_gpu(text, address, {"mode": mode, "vfs": vfs, "cordoned": cordoned}, NAME)
    before, after = parse_host_spec(text, NAME), parse_host_spec(changed, NAME)
    assert after.gpus.get(address, GpuSpec()) == GpuSpec(mode, vfs, cordoned)
    assert {k: v for k, v in after.gpus.items() if k != address} == {
        k: v for k, v in before.gpus.items() if k != address
    }
    assert (after.defaults, after.boot) == (before.defaults, before.boot)
    assert edit_gpu(changed, address, {"mode": mode, "vfs": vfs, "cordoned": cordoned}, NAME) == changed


@given(text=commented(), edits=st.lists(EDITS, min_size=1, max_size=4))
def test_every_comment_line_and_every_other_setting_stays(text, edits):
    for address, changes in edits:
        changed = edit_gpu(text, address, changes, NAME)
        assert comments(changed) == comments(text)
        before, after = parse_host_spec(text, NAME), parse_host_spec(changed, NAME)
        output = before.gpus.get(address, GpuSpec())
        meant = replace(output, **changes)
        assert {**after.gpus, address: after.gpus.get(address, GpuSpec())} == {**before.gpus, address: meant}
        assert (after.defaults, after.boot, after.vgpus) == (before.defaults, before.boot, before.vgpus)
        text = changed


@pytest.mark.parametrize("address", [GPU, OTHER])
def test_a_comment_stays_before_its_key(address):
    text = edit_gpu(COMMENTED, address, {"cordoned": None}, NAME)
    assert f"\n\n{SITE}\ndefaults:\n  image:" in text
    assert text.startswith("# head\n---\nversion: 1\n\ngpus:\n")
    assert text.endswith("\n# the end\n")


def test_a_removed_keys_comment_moves_before_the_next_key():
    text = edit_gpu(COMMENTED, GPU, {"cordoned": None}, NAME)
    assert f"    cordoned: true\n  # the new card\n\n{SITE}\n" in text


def test_comments_at_the_ends_of_lines_stay_with_the_keys_that_stay():
    text = "version: 1 # v\ngpus: # all\n  3b:00.0: # new\n    mode: vgpu # m\n    vfs: 3 # f\nboot: {} # b\n"
    assert edit_gpu(text, GPU, {"vfs": None}, NAME) == text.replace("    vfs: 3 # f\n", "")
    assert edit_gpu(text, GPU, {"mode": None}, NAME) == text.replace("    mode: vgpu # m\n", "")


@pytest.mark.parametrize("lost", [SITE, "# head", "# the end"])
def test_an_edit_that_loses_a_comment_is_refused_with_a_hint(lost):
    with pytest.raises(InvalidInput, match=f"the comment '{lost}' would be lost") as raised:
        refuse_lost_comments(COMMENTED, COMMENTED.replace(lost, ""), NAME)
    assert "by hand" in str(raised.value.hint)
    refuse_lost_comments(COMMENTED, COMMENTED.replace(lost, f"    {lost}"), NAME)


def test_one_of_two_equal_comments_also_stays():
    with pytest.raises(InvalidInput, match="would be lost"):
        refuse_lost_comments("# a\nversion: 1\n# a\n", "# a\nversion: 1\n", NAME)


def test_a_comment_moved_below_a_block_scalar_stays_a_comment():
    text = "defaults:\n  os: >-\n    linux\ngpus:\n  3b:00.0:\n    cordoned: true\n    # ours\nversion: 1\n"
    changed = edit_gpu(text, GPU, {"cordoned": None}, NAME)
    assert changed == "defaults:\n  os: >-\n    linux\n# ours\nversion: 1\n"


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_other_ends_of_lines_keep_comments_too(end):
    text = edit_gpu(COMMENTED.replace("\n", end), GPU, {"cordoned": None}, NAME)
    assert comments(text) == comments(COMMENTED)


def test_comment_like_text_is_no_comment():
    text = "version: 1\ngpus:\n  3b:00.0: {cordoned: true}\ndefaults:\n  image: '/srv/a\n    # b'\n"
    changed = edit_gpu(text, GPU, {"cordoned": None}, NAME)
    assert parse_host_spec(changed, NAME).defaults == parse_host_spec(text, NAME).defaults


VGPU = {"profile": "A100-4C", "gpu": GPU, "carrier": "0000:3b:00.4", "vgpu_params": {"frame_rate_limiter": "0"}}


@pytest.mark.parametrize("text", [None, "version: 1\n", WRITTEN, COMMENTED])
@pytest.mark.parametrize("name", ["spare", "1", "yes", "null", "1.5", "3b"])
def test_adding_and_removing_a_vgpu_changes_nothing_else(text, name):
    added = edit_vgpu(text, name, VGPU, NAME)
    assert dict(parse_host_spec(added, NAME).vgpus) == {name: VgpuSpec(**VGPU)}
    assert edit_vgpu(added, name, VGPU, NAME) == added
    both = edit_vgpu(added, "other", {**VGPU, "carrier": "0000:3b:00.5", "vgpu_params": None}, NAME)
    assert list(parse_host_spec(both, NAME).vgpus) == [name, "other"]
    gone = edit_vgpu(edit_vgpu(both, name, dict.fromkeys(VGPU), NAME), "other", dict.fromkeys(VGPU), NAME)
    assert parse_host_spec(gone, NAME) == parse_host_spec(text or "version: 1\n", NAME)
    if text is not None:
        refuse_lost_comments(text, gone, NAME)


SCHEDULED = """version: 1
gpus:
  "0000:3b:00.0":
    mode: vgpu
    # agreed with the desktop team
    scheduler:
      policy: equal_share  # not best effort
      # 2 ms was too short
      time_slice_ms: 4
"""


def test_adding_changing_removing_a_scheduler_keeps_comments():
    wanted = {"policy": "fixed_share", "frequency_hz": 480}
    now = edit_gpu(SCHEDULED, GPU, {"scheduler": wanted}, NAME)
    kept = [line for line in SCHEDULED.splitlines() if "time_slice_ms" not in line]
    assert [line.replace("fixed", "equal") for line in now.splitlines() if "frequency_hz: 480" not in line] == kept
    assert edit_gpu(now, GPU, {"scheduler": wanted}, NAME) == now
    gone = edit_gpu(now, GPU, {"scheduler": None}, NAME)
    assert parse_host_spec(gone, NAME).gpus[GPU] == GpuSpec(mode="vgpu")
    assert "# 2 ms was too short" in gone
    fresh = edit_gpu(None, GPU, {"scheduler": wanted}, NAME)
    assert fresh.endswith("    scheduler:\n      policy: fixed_share\n      frequency_hz: 480\n")
    flow = edit_gpu(WRITTEN, OTHER, {"scheduler": {"policy": "best_effort"}}, NAME)
    assert "{mode: passthrough, scheduler: {policy: best_effort}} # for the lab" in flow


def set_agent(text: str | None, *assignments: str) -> str:
    parsed = [parse_agent_assignment(one) for one in assignments]
    return edit_agent(text, [one for one in parsed if one is not None], NAME)


def test_keys_of_the_agent_are_set_and_removed_and_the_rest_stays() -> None:
    added = set_agent(COMMENTED, "agent.accounts[ada@example.org]=fleet", "agent.allow.folders=[/srv/images]")
    assert set(COMMENTED.splitlines()) <= set(added.splitlines())
    agent = parse_host_spec(added, NAME).agent
    assert (dict(agent.accounts), agent.allow.folders) == ({"ada@example.org": "fleet"}, ("/srv/images",))
    assert set_agent(added, "agent.accounts[ada@example.org]=fleet") == added
    less = set_agent(added, "agent.accounts[ada@example.org]=null")
    assert "accounts" not in less
    assert parse_host_spec(less, NAME).agent.allow == agent.allow
    removed = set_agent(less, "agent.allow.folders=null")
    assert parse_host_spec(removed, NAME) == parse_host_spec(COMMENTED, NAME)
    assert set_agent(None, "agent.self_healing=false") == "version: 1\nagent:\n  self_healing: false\n"


@pytest.mark.parametrize("text", ["agent.accounts[ada]=king", "agent.x.y=1", "agent.allow.folders=relative"])
def test_a_wrong_value_of_the_agent_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=NAME):
        set_agent(COMMENTED, text)
