# SPDX-License-Identifier: Apache-2.0
"""The registry dword: decodes on the same generation as encoded, and another generation's dword is suspected.

The version of the loaded driver is read from either file, in the forms that NVIDIA's modules print.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.scheduler.registry_dword import (
    DriverGeneration,
    decode_dword,
    driver_generation,
    encode_dword,
    explain_unencodable,
    parse_driver_version,
    parse_scheduler_log,
    supports_weights,
    wrong_generation,
)

BEST, EQUAL, FIXED = SchedulerPolicy.BEST_EFFORT, SchedulerPolicy.EQUAL_SHARE, SchedulerPolicy.FIXED_SHARE
STRICT, EITHER, ADAPTIVE = DriverGeneration.STRICT, DriverGeneration.EITHER, DriverGeneration.ADAPTIVE
shared = st.sampled_from([EQUAL, FIXED])
slices = st.builds(SchedulerSpec, shared, st.none() | st.integers(1, 255))
adaptives = st.builds(
    SchedulerSpec,
    shared,
    st.none(),
    st.none() | st.integers(1, 1023),
    st.none() | st.integers(1, 255),
)
best = st.just(SchedulerSpec(BEST))


@pytest.mark.parametrize(
    ("kind", "spec", "word"),
    [
        (EITHER, SchedulerSpec(BEST), 0x00),
        (EITHER, SchedulerSpec(EQUAL), 0x01),
        (EITHER, SchedulerSpec(FIXED), 0x11),
        (STRICT, SchedulerSpec(EQUAL), 0x01),
        (STRICT, SchedulerSpec(FIXED), 0x11),
        (STRICT, SchedulerSpec(EQUAL, 3), 0x00030001),
        (STRICT, SchedulerSpec(FIXED, 30), 0x001E0011),
        (EITHER, SchedulerSpec(EQUAL, 3), 0x00030003),
        (EITHER, SchedulerSpec(FIXED, 3), 0x00030013),
        (EITHER, SchedulerSpec(EQUAL, None, 63, 1), 0x0103F001),
        (ADAPTIVE, SchedulerSpec(EQUAL, None, 960, 60), 0x3C3C0001),
        (ADAPTIVE, SchedulerSpec(FIXED, None, 960), 0x003C0011),
    ],
)
def test_the_vectors_of_the_drivers_own_header(kind, spec, word):
    assert encode_dword(kind, spec) == word
    assert decode_dword(kind, word) == spec


@given(slices | best)
def test_what_was_encoded_is_decoded_before_adaptive_round_robin(spec):
    assert decode_dword(STRICT, encode_dword(STRICT, spec)) == spec


@given(slices.filter(lambda s: s.time_slice_ms) | adaptives | best)
def test_what_was_encoded_is_decoded_where_either_can_be_chosen(spec):
    assert decode_dword(EITHER, encode_dword(EITHER, spec)) == spec
    assert wrong_generation(EITHER, encode_dword(EITHER, spec)) is None or spec.frequency_hz not in (
        None,
        *range(63, 961),
    )


@given(adaptives | best)
def test_what_was_encoded_is_decoded_where_all_is_adaptive(spec):
    assert decode_dword(ADAPTIVE, encode_dword(ADAPTIVE, spec)) == spec


@given(st.sampled_from(DriverGeneration), st.integers(0, 0xFFFFFFFF))
def test_every_word_is_decoded_or_refused_and_never_breaks_anything(kind, word):
    try:
        spec = decode_dword(kind, word)
    except ValueError:
        assert word & 1
        assert word >> 4 & 0xF > 1
        return
    assert explain_unencodable(kind, spec) is None
    assert decode_dword(kind, encode_dword(kind, spec)) == spec


def test_what_a_generation_does_not_have_is_not_encoded():
    with pytest.raises(ValueError, match="595"):
        encode_dword(ADAPTIVE, SchedulerSpec(EQUAL, 2))
    with pytest.raises(ValueError, match="550"):
        encode_dword(STRICT, SchedulerSpec(EQUAL, None, 480))
    with pytest.raises(ValueError, match="8 bits"):
        encode_dword(EITHER, SchedulerSpec(EQUAL, 256))
    with pytest.raises(ValueError, match="32 bits"):
        decode_dword(EITHER, 1 << 32)


def test_the_bit_for_weights_stays_as_it_was():
    assert encode_dword(ADAPTIVE, SchedulerSpec(FIXED), previous=0x8) == 0x19
    assert (supports_weights("580.1"), supports_weights("590.48"), supports_weights(None)) == (False, True, False)


@pytest.mark.parametrize(
    ("driver", "adaptive", "kind"),
    [
        ("470.63", None, STRICT),
        ("535.161.05", False, STRICT),
        ("535.161.05", True, EITHER),
        ("550.90.05", None, EITHER),
        ("590.48", None, EITHER),
        ("595.45.04", None, ADAPTIVE),
        ("595.45.04", True, ADAPTIVE),
        (None, None, None),
        ("r550", None, None),
    ],
)
def test_the_generation_follows_the_drivers_version(driver, adaptive, kind):
    assert driver_generation(driver, adaptive=adaptive) is kind


@pytest.mark.parametrize(
    ("kind", "word", "text"),
    [
        (EITHER, 0x00030001, "48 Hz"),
        (ADAPTIVE, 0x00030001, "48 Hz"),
        (ADAPTIVE, 0x00030003, "adaptive round robin off"),
        (STRICT, 0x00030003, "bit 1"),
        (STRICT, 0x2103F001, "averaging factor"),
        (STRICT, 0x00C00001, "frequency"),
    ],
)
def test_another_generations_dword_is_suspected(kind, word, text):
    result = wrong_generation(kind, word)
    assert result is not None
    assert text in result


@pytest.mark.parametrize("kind", DriverGeneration)
@pytest.mark.parametrize("word", [0x0, 0x1, 0x11])
def test_dwords_equal_in_all_generations_are_not_suspected(kind, word):
    assert wrong_generation(kind, word) is None


GCC = "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.05  Thu May 16 11:00:00 UTC 2024",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.05  Release Build  (dvs@U16-I3-B16-3-4)",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.05",
    ],
)
def test_the_version_is_read_from_proc(line: str) -> None:
    assert parse_driver_version(None, f"{line}\n{GCC}") == "550.90.05"
    assert parse_driver_version("", f"{line}\n{GCC}") == "550.90.05"
    assert parse_driver_version("535.161.05\n", f"{line}\n{GCC}") == "535.161.05"


@pytest.mark.parametrize("text", [None, "", GCC, "NVRM version: NVIDIA UNIX x86_64 Kernel Module\n" + GCC])
def test_other_text_has_no_version(text: str | None) -> None:
    assert parse_driver_version(None, text) is None


GPU = "0000:41:00.0"


@pytest.mark.parametrize(
    ("end", "policy"),
    [
        ("DISABLED with policy BEST_EFFORT.", SchedulerPolicy.BEST_EFFORT),
        ("ENABLED with policy EQUAL_SHARE.", SchedulerPolicy.EQUAL_SHARE),
        ("ENABLED with policy FIXED_SHARE on GR", SchedulerPolicy.FIXED_SHARE),
        ("DISABLED with policy NONE.", None),
    ],
)
def test_both_spellings_are_understood(end, policy):
    line = f"[   12.345678] NVRM: GPU at 0000:41:00.0 has software scheduler {end}"
    state = parse_scheduler_log([line], GPU)
    assert state is not None
    assert (state.policy, state.source) == (policy, "kernel log")


def test_the_last_line_of_this_gpus_graphics_counts():
    head = "NVRM: GPU at"
    lines = [
        f"{head} 0000:41:00.0 has software scheduler ENABLED with policy EQUAL_SHARE on GR",
        f"{head} 0000:41:00.0 has software scheduler ENABLED with policy BEST_EFFORT on NVENC0",
        f"{head} 0000:42:00.0 has software scheduler ENABLED with policy FIXED_SHARE on GR",
        "NVRM: something else",
    ]
    state = parse_scheduler_log(lines, GPU)
    assert state is not None
    assert state.policy is SchedulerPolicy.EQUAL_SHARE
    assert parse_scheduler_log(lines, "0000:43:00.0") is None
