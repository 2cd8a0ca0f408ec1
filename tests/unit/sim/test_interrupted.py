# SPDX-License-Identifier: Apache-2.0
"""A signal anywhere in the simulator's journal: a written line counts once, also for the undo that follows."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.hosts import copied, create, open_sim_host, picture, request
from vgpuctl.errors import Interrupted, VgpuctlError
from vgpuctl.sim import journal
from vgpuctl.sim.journal import Journal, JournalRecord
from vgpuctl.value import replace


class Signal:
    """Raises Interrupted at the n-th place in journal.py where Python runs signal handlers; 0 only counts the places.

    Python runs them when a function begins, after each call and when a loop begins again.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.functions: list[str] = []
        self._open = False

    def during(self, work: Callable[[], object]) -> Exception | None:
        """Do the work, and return its error."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            work()
        except (Interrupted, VgpuctlError) as error:
            return error
        finally:
            sys.settrace(before)
        return None

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != journal.__file__ or frame.f_code.co_name in ("close", "__del__"):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._open = False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, argument: object) -> Any:
        if event != "opcode":
            return self._opcode
        self.functions += [frame.f_code.co_name] if self._open else []
        if self._open and len(self.functions) == self.number:
            raise Interrupted("stopped by SIGTERM", signal_number=15)
        name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        self._open = name in ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW") or name.startswith("JUMP_BACKWARD")
        return self._opcode


class Counter:
    """A journal whose state is the list of everything that was applied,."""

    def __init__(self, directory: Path) -> None:
        self.seen: list[JournalRecord] = []
        self.journal = Journal(directory, lambda header: self.seen.clear(), self._apply)

    def _apply(self, records: list[JournalRecord]) -> None:
        self.seen += records

    def write(self, *records: JournalRecord) -> None:
        with self.journal.locked():
            self.journal.append(list(records))


def new_journal(directory: Path) -> Counter:
    directory.mkdir()
    counter = Counter(directory)
    with counter.journal.locked():
        counter.journal.replace("header", [])
    counter.write(["first"])
    other = Counter(directory)
    other.write(["by another process"])
    return counter


def test_a_line_that_a_signal_interrupts_counts_once_or_never_and_the_lock_is_free(tmp_path: Path) -> None:
    count = Signal()
    assert count.during(lambda: new_journal(tmp_path / "count").write(["a"], ["b"])) is None
    assert {"append", "locked", "refresh", "_read_tail", "_catch_up"} <= set(count.functions)
    whole = 0
    for number in range(1, len(count.functions) + 1):
        directory = tmp_path / str(number)
        counter = new_journal(directory)
        signal = Signal(number)
        signal.during(lambda: counter.write(["a"], ["b"]))  # noqa: B023 - it runs at once
        counter.write(["undone"])
        others = Counter(directory)
        others.write(["after"])
        counter.journal.refresh()
        written = [["a"], ["b"]] if ["a"] in others.seen else []
        whole += bool(written)
        assert counter.seen == others.seen, signal.functions[-1]
        assert others.seen == [["first"], ["by another process"], *written, ["undone"], ["after"]]
    assert 0 < whole < len(count.functions)


def test_a_signal_while_the_journal_is_replaced_leaves_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    def replace_all(counter: Counter) -> None:
        with counter.journal.locked():
            counter.journal.replace("second", [["new"]])

    count = Signal()
    counted = new_journal(tmp_path / "count")
    assert count.during(lambda: replace_all(counted)) is None
    new = 0
    for number in range(1, len(count.functions) + 1):
        directory = tmp_path / str(number)
        counter = new_journal(directory)
        Signal(number).during(lambda: replace_all(counter))  # noqa: B023 - it runs at once
        others = Counter(directory)
        others.write(["after"])
        counter.journal.refresh()
        new += others.seen == [["new"], ["after"]]
        assert others.seen in ([["new"], ["after"]], [["first"], ["by another process"], ["after"]])
        assert counter.seen == others.seen
    assert 0 < new < len(count.functions)


def test_a_signal_in_any_write_of_a_create_is_undone_whole(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path / "host")
    create(host.ports, request("A100-4C"))
    count = Signal()
    counted = copied(host, tmp_path / "count")
    assert count.during(lambda: create(counted.ports, request("A100-4C"))) is None
    places = [n for n, function in enumerate(count.functions, 1) if function in ("append", "_write_length")]
    assert len(places) >= 20
    for number in places:
        struck = copied(host, tmp_path / str(number))
        before = picture(struck)
        error = Signal(number).during(lambda: create(struck.ports, request("A100-4C")))  # noqa: B023 - it runs at once
        assert isinstance(error, Interrupted), number
        assert (error.left, picture(struck)) == ([], before), number
        assert picture(open_sim_host(struck.directory)) == before


@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_signal_while_the_vm_starts_undoes_the_start_too(tmp_path: Path, takes_effect: bool) -> None:
    host = open_sim_host(tmp_path)
    before = picture(host)

    class Starts:
        def __getattr__(self, name: str) -> Any:
            return getattr(host.ports.hypervisor, name)

        def start(self, uuid: str) -> None:
            if takes_effect:
                host.ports.hypervisor.start(uuid)
            raise Interrupted("stopped by SIGINT", signal_number=2)

    with pytest.raises(Interrupted) as raised:
        create(replace(host.ports, hypervisor=Starts()), request("A100-4C"))
    assert (raised.value.left, picture(host)) == ([], before)
