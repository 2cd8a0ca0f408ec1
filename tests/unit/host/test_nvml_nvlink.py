# SPDX-License-Identifier: Apache-2.0
"""Which GPUs NVLink connects, as NVML reports it."""

from tests.unit.host.nvml_library import done_by
from vgpuctl.host.absent import AbsentNvml

ASK = "nvml.nvlink_peers(address)"


def test_the_gpus_at_active_links_are_named_once_and_nvswitches_are_not(tmp_path):
    (peers,), _calls = done_by(tmp_path, ASK, flags=('-DNVLINK="00000000:3F:00.0"',))
    assert peers == ("0000:3f:00.0",)


def test_a_library_that_cannot_tell_the_kind_names_every_other_end(tmp_path):
    (peers,), _calls = done_by(tmp_path, ASK, flags=('-DNVLINK="00000000:3F:00.0"', "-DOLD_NVLINK"))
    assert peers == ("0000:05:00.0", "0000:3f:00.0")


def test_without_the_calls_or_with_a_strange_answer_it_is_not_known(tmp_path):
    for flags in ((), ('-DNVLINK="?"',)):
        (peers,), _calls = done_by(tmp_path, ASK, flags=flags)
        assert peers is None
    assert AbsentNvml("--root").nvlink_peers("0000:3b:00.0") is None
