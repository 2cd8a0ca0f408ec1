# SPDX-License-Identifier: Apache-2.0
"""Which controller a host obeys: who may take it, what an agent knows again after a restart, and what damage does."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.agent import fleet_fence
from vgpuctl.agent.fleet_fence import FILE_NAME, KEPT_SECONDS, MAX_FILE_BYTES, FleetFence
from vgpuctl.agent.protocol import DesktopDeleted, Fenced, FenceLost, StateNotWritable
from vgpuctl.errors import Temporary
from vgpuctl.model.desktop import Fence

ONE, TWO = Fence("db-1", 5, "a"), Fence("db-2", 1, "b")
DESKTOP = "4b20d080-1b54-4048-85b3-a6a62d165c01"


class Time:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.seconds = 1e9

    def now(self) -> float:
        return self.seconds


def open_fence(directory: Path, time: Time | None = None, *, desktops: bool = False) -> FleetFence:
    return FleetFence(directory, (time or Time()).now, lambda: desktops)


def announce(fence: FleetFence, holder: Fence, *, adopt: bool = False, is_root: bool = False) -> None:
    fence.announce(holder, adopt=adopt, is_root=is_root)


def reason(act: Callable[[], object]) -> str:
    with pytest.raises(Fenced) as caught:
        act()
    assert caught.value.hint
    return str(caught.value.facts["reason"])


def test_the_first_holder_is_taken_and_known_again_by_the_next_agent(tmp_path: Path) -> None:
    fence = open_fence(tmp_path / "new")
    assert reason(lambda: fence.check(ONE)) == "unknown"
    announce(fence, ONE)
    assert fence.check(ONE) is False
    file = tmp_path / "new" / FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert open_fence(tmp_path / "new", desktops=True).check(ONE) is False


def test_each_holder_of_the_lease_has_a_higher_epoch(tmp_path: Path) -> None:
    fence = open_fence(tmp_path)
    announce(fence, ONE)
    before = (tmp_path / FILE_NAME).stat()
    announce(fence, ONE)
    assert (tmp_path / FILE_NAME).stat() == before, "nothing is written when nothing changes"
    assert reason(lambda: announce(fence, Fence("db-1", 4, "z"))) == "epoch"
    assert reason(lambda: announce(fence, Fence("db-1", 4, "a"))) == "epoch"
    assert reason(lambda: announce(fence, Fence("db-1", 5, "b"))) == "holder"
    assert reason(lambda: fence.check(Fence("db-1", 5, "b"))) == "holder"
    assert reason(lambda: fence.check(Fence("db-1", 6, "b"))) == "unknown", "a new holder announces itself first"
    announce(fence, Fence("db-1", 6, "b"))
    assert reason(lambda: fence.check(ONE)) == "epoch"
    assert fence.check(Fence("db-1", 6, "b")) is False


def test_another_database_takes_the_host_only_by_adopt_and_the_former_never_again(tmp_path: Path) -> None:
    fence = open_fence(tmp_path)
    announce(fence, ONE)
    assert reason(lambda: announce(fence, TWO)) == "incarnation"
    assert reason(lambda: fence.check(TWO)) == "incarnation"
    announce(fence, TWO, adopt=True)
    assert fence.check(TWO) is True
    for again in (fence, open_fence(tmp_path)):
        assert reason(lambda again=again: again.check(ONE)) == "former"
        assert reason(lambda again=again: announce(again, Fence("db-1", 99, "a"))) == "former"
        assert reason(lambda again=again: announce(again, Fence("db-1", 99, "a"), adopt=True)) == "former"
    announce(fence, ONE, adopt=True, is_root=True)
    assert fence.check(ONE) is True
    assert reason(lambda: fence.check(TWO)) == "former"


def test_so_many_former_ones_are_remembered_and_none_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_fence, "MAX_FORMER", 2)
    fence = open_fence(tmp_path)
    for number in range(3):
        announce(fence, Fence(f"db-{number}", 1, "a"), adopt=True)
    assert reason(lambda: announce(fence, Fence("db-3", 1, "a"), adopt=True)) == "former"
    assert reason(lambda: fence.check(Fence("db-0", 1, "a"))) == "former"
    assert fence.check(Fence("db-2", 1, "a"))


GOOD = {"incarnation": "db-1", "epoch": 5, "holder": "a", "adopted": False, "former": [], "deleted": {}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\x00" * 100,
        b"\xff\xfe{}",
        b"[]",
        b"null",
        b"[" * 100_000,
        json.dumps(GOOD).encode()[:-7],
        *(
            json.dumps({**GOOD, **change}).encode()
            for change in (
                {"epoch": -1},
                {"epoch": 10**18},
                {"epoch": "5"},
                {"epoch": True},
                {"holder": ""},
                {"holder": "a\nb"},
                {"holder": "x" * 256},
                {"incarnation": None},
                {"former": ["", "b"]},
                {"former": [str(number) for number in range(101)]},
                {"deleted": {"../x": 1.0}},
                {"deleted": {DESKTOP: "now"}},
                {"deleted": []},
            )
        ),
        json.dumps({**GOOD, "deleted": {DESKTOP: float("nan")}}).encode(),
        json.dumps({**GOOD, "deleted": {DESKTOP: float("inf")}}).encode(),
        b" " * (MAX_FILE_BYTES + 1) + json.dumps(GOOD).encode(),
    ],
    ids=lambda content: repr(content[:40]),
)
def test_a_damaged_file_stops_all_changes_until_a_controller_adopts_the_host(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / FILE_NAME
    file.write_bytes(content)
    fence = open_fence(tmp_path)
    for act in (lambda: fence.check(ONE), lambda: announce(fence, ONE), lambda: announce(fence, TWO)):
        with pytest.raises(FenceLost) as caught:
            act()
        assert caught.value.hint
        assert len(caught.value.message) < 500
    assert file.read_bytes() == content, "a refusal writes nothing"
    announce(fence, TWO, adopt=True)
    assert fence.check(TWO) is True
    assert open_fence(tmp_path).check(TWO) is True


def test_a_pipe_or_a_folder_in_its_place_is_damage_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME)
    with pytest.raises(FenceLost):
        announce(open_fence(tmp_path), ONE)
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / FILE_NAME).mkdir()
    fence = open_fence(tmp_path)
    with pytest.raises(StateNotWritable):
        announce(fence, ONE, adopt=True)
    with pytest.raises(FenceLost):
        fence.check(ONE)


def test_a_missing_file_is_a_loss_on_a_host_with_desktops(tmp_path: Path) -> None:
    fence = open_fence(tmp_path, desktops=True)
    with pytest.raises(FenceLost, match="is missing"):
        announce(fence, ONE)
    assert not (tmp_path / FILE_NAME).exists()
    announce(fence, ONE, adopt=True)
    assert fence.check(ONE) is True


def test_what_cannot_be_written_is_not_taken(tmp_path: Path) -> None:
    fence = open_fence(tmp_path / "state")
    announce(fence, ONE)
    (tmp_path / "state").rename(tmp_path / "moved")
    (tmp_path / "state").touch()  # a file where the folder was: root cannot write there either
    with pytest.raises(StateNotWritable):
        announce(fence, Fence("db-1", 6, "b"))
    with pytest.raises(StateNotWritable):
        fence.note_deletion(DESKTOP)
    assert fence.check(ONE) is False
    fence.refuse_deleted(DESKTOP)
    (tmp_path / "state").unlink()
    announce(fence, Fence("db-1", 6, "b"))
    assert open_fence(tmp_path / "state").check(Fence("db-1", 6, "b")) is False


def test_a_deleted_desktop_is_remembered_for_seven_days(tmp_path: Path) -> None:
    time = Time()
    fence = open_fence(tmp_path, time)
    announce(fence, ONE)
    fence.note_deletion(DESKTOP)
    fence.refuse_deleted(DESKTOP.replace("4", "5"))
    announce(fence, TWO, adopt=True)
    for one in (fence, open_fence(tmp_path, time)):
        with pytest.raises(DesktopDeleted):
            one.refuse_deleted(DESKTOP)
    time.seconds += KEPT_SECONDS - 1
    with pytest.raises(DesktopDeleted):
        fence.refuse_deleted(DESKTOP)
    time.seconds += 1
    fence.refuse_deleted(DESKTOP)


def test_when_no_more_deletions_can_be_remembered_nothing_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_fence, "MAX_DELETED", 2)
    time = Time()
    fence = open_fence(tmp_path, time)
    announce(fence, ONE)
    ids = [DESKTOP[:-1] + digit for digit in "123"]
    for one in (*ids[:2], ids[0]):
        fence.note_deletion(one)
    time.seconds += KEPT_SECONDS - 1
    with pytest.raises(Temporary, match="no more can be remembered"):
        fence.note_deletion(ids[2])
    fence.refuse_deleted(ids[2])
    time.seconds += 1
    fence.note_deletion(ids[2])
    assert list(json.loads((tmp_path / FILE_NAME).read_text())["deleted"]) == ids[2:]


fences = st.builds(Fence, st.sampled_from(("db-1", "db-2", "db-3")), st.integers(0, 4), st.sampled_from("ab"))


@given(st.lists(st.tuples(fences, st.booleans()), max_size=12))
def test_whatever_was_announced_at_most_one_holder_is_obeyed_and_no_former_one(
    tmp_path_factory: pytest.TempPathFactory, announced: list[tuple[Fence, bool]]
) -> None:
    directory = tmp_path_factory.mktemp("fence")
    fence = open_fence(directory)
    taken: list[Fence] = []
    for one, adopt in announced:
        try:
            announce(fence, one, adopt=adopt)
        except Fenced:
            continue
        taken.append(one)
        if len(taken) > 1 and taken[-2].incarnation == one.incarnation:
            assert one.epoch > taken[-2].epoch or one == taken[-2]
        else:
            assert one.incarnation not in [before.incarnation for before in taken[:-1]]
    for reopened in (fence, open_fence(directory)):
        obeyed = [
            one for one in (Fence(i, e, h) for i in ("db-1", "db-2", "db-3") for e in range(5) for h in "ab")
            if _obeys(reopened, one)
        ]  # fmt: skip
        assert obeyed == taken[-1:]


def _obeys(fence: FleetFence, holder: Fence) -> bool:
    try:
        fence.check(holder)
    except Fenced:
        return False
    return True


def test_the_file_of_a_killed_agent_is_the_former_one_or_the_new_one(tmp_path: Path) -> None:
    fence = open_fence(tmp_path)
    announce(fence, ONE)
    temporary: Any = tmp_path / f".{FILE_NAME}.vgpuctl-999999-1"
    temporary.write_text("{")
    assert open_fence(tmp_path).check(ONE) is False
