# SPDX-License-Identifier: Apache-2.0
"""Several plans at once: how many at a time, who fails alone, and what signals do."""

from __future__ import annotations

import threading

from tests.worlds import open_host
from vgpuctl.engine.crew import Crew, Job
from vgpuctl.errors import DeviceFailed, Interrupted
from vgpuctl.model.step import Plan

WAIT_SECONDS = 30.0


class Step:
    """A step that notes what becomes of it; `act` is done in it."""

    def __init__(self, name, log, act=lambda: None, undo=lambda: None):
        self.name, self.log, self.act, self.take_back = name, log, act, undo

    def describe(self):
        return self.name

    def perform(self, world):
        self.log.append(f"do {self.name}")
        self.act()

    def verify(self, world): ...

    def undo(self, world):
        self.take_back()
        self.log.append(f"undo {self.name}")


class Told:
    """Progress that keeps what it is told, and does what a signal's handler would."""

    def __init__(self, act=lambda done: None):
        self.lines, self.act = [], act

    def planned(self, steps): ...
    def started(self, number, text): ...
    def finished(self, number, text): ...
    def undoing(self, text): ...

    def tallied(self, done, total, failed, text):
        self.lines.append(f"{done}/{total} {failed} {text}")
        self.act(done)


def job(name, *steps):
    return Job(name, (), Plan(tuple(steps)))


def fail():
    raise DeviceFailed("the card is on fire")


def crew(tmp_path, jobs, parallel, progress=None):
    return Crew(open_host(tmp_path).world, tuple(jobs), parallel, progress or Told())


def test_one_that_fails_is_undone_alone(tmp_path):
    log, told = [], Told()
    jobs = [job("a", Step("a1", log)), job("b", Step("b1", log), Step("b2", log, fail)), job("c", Step("c1", log))]
    at_work = crew(tmp_path, jobs, 1, told)
    at_work.work()
    assert at_work.made == ["a", "c"]
    assert at_work.failed["b"].undone == ["b2", "b1"]
    assert log == ["do a1", "do b1", "do b2", "undo b2", "undo b1", "do c1"]
    assert told.lines == ["1/3 0 a: made", "2/3 1 b: failed: the card is on fire", "3/3 1 c: made"]


def test_as_many_work_at_a_time_as_were_asked_for(tmp_path):
    """Each waits until four are there: with fewer threads the barrier breaks, with more a count would."""
    barrier = threading.Barrier(4)
    inside, most, guard = [], [], threading.Lock()

    def enter():
        with guard:
            inside.append(1)
            most.append(len(inside))
        barrier.wait(WAIT_SECONDS)
        with guard:
            inside.pop()

    at_work = crew(tmp_path, [job(f"vm-{n}", Step("s", [], enter)) for n in range(8)], 4)
    at_work.work()
    assert len(at_work.made) == 8
    assert max(most) == 4


def test_after_the_first_signal_none_is_begun_and_the_half_made_are_undone(tmp_path):
    log, stopped, begun = [], threading.Event(), threading.Event()

    def signal(done):
        begun.wait(WAIT_SECONDS)
        raise Interrupted("stopped by SIGINT", signal_number=2)

    def wait():
        begun.set()
        stopped.wait(WAIT_SECONDS)

    jobs = [job("a", Step("a1", log)), job("b", Step("b1", log, wait), Step("b2", log)), job("c", Step("c1", log))]
    at_work = crew(tmp_path, jobs, 1, Told(signal))
    release = threading.Thread(target=_when, args=(lambda: at_work.stopped is not None, stopped))
    release.start()
    at_work.work()
    release.join()
    assert at_work.made == ["a"]
    assert at_work.failed["b"].code == "interrupted"
    assert at_work.failed["b"].undone == ["b1"]
    assert log == ["do a1", "do b1", "undo b1"]
    assert at_work.stopped is not None
    assert at_work.stopped.signal_number == 2


def test_the_second_signal_stops_the_undo_and_says_what_is_left(tmp_path):
    log, signals, halted, undoing = [], [], threading.Event(), threading.Event()

    def signal(done):
        signals.append(done)
        raise Interrupted("stopped by SIGTERM", signal_number=15) if len(signals) == 1 else KeyboardInterrupt

    def take_back():
        undoing.set()
        halted.wait(WAIT_SECONDS)

    def wait():
        _when(lambda: at_work.stopped is not None, threading.Event())

    slow = job("slow", Step("s1", log), Step("s2", log, wait, take_back), Step("s3", log))
    late = job("late", Step("l1", log, lambda: undoing.wait(WAIT_SECONDS)))
    at_work = crew(tmp_path, [job("first", Step("f1", log, lambda: None)), slow, late], 3, Told(signal))
    release = threading.Thread(target=_when, args=(lambda: at_work.halted, halted))
    release.start()
    at_work.work()
    release.join()
    assert at_work.failed["slow"].undone == ["s2"]
    assert at_work.failed["slow"].left == ["s1"]
    assert sorted(at_work.made) == ["first", "late"]


def _when(condition, event):
    """Set an event when a condition holds, looking at it again and again for a while."""
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS * 200)):
        if condition():
            break
        pause.wait(0.005)
    event.set()


def test_a_failure_that_is_a_bug_is_told_and_the_others_go_on(tmp_path):
    def bug():
        raise ZeroDivisionError("oops")

    at_work = crew(tmp_path, [job("a", Step("a1", [], bug)), job("b", Step("b1", []))], 2)
    at_work.work()
    assert at_work.made == ["b"]
    assert "oops" in at_work.failed["a"].message
