# SPDX-License-Identifier: Apache-2.0
"""Several plans at once: how many at a time, which failures stay alone, and what signals do."""

from __future__ import annotations

import threading

from tests.hosts import Silent, open_sim_host
from vgpuctl.errors import DeviceFailed, Interrupted
from vgpuctl.operations.worker_pool import VmJob, WorkerPool
from vgpuctl.ports.step import LongStep, Plan

WAIT_SECONDS = 30.0


class Step:
    """A step that logs its calls and runs `act`."""

    def __init__(self, name, log, act=lambda: None, undo=lambda: None):
        self.name, self.log, self.act, self.take_back = name, log, act, undo

    def describe(self):
        return self.name

    def perform(self, ports):
        self.log.append(f"do {self.name}")
        self.act()

    def verify(self, ports): ...

    def undo(self, ports):
        self.take_back()
        self.log.append(f"undo {self.name}")


class RecordedProgress(Silent):
    """Progress that logs its events, and does what a signal handler would."""

    def __init__(self, act=lambda done: None):
        self.lines, self.act = [], act

    def on_vm_finish(self, done, total, failed, text):
        self.lines.append(f"{done}/{total} {failed} {text}")
        self.act(done)


def job(name, *steps):
    return VmJob(name, (), Plan(tuple(steps)))


def fail():
    raise DeviceFailed("the card is on fire")


def worker_pool(tmp_path, jobs, parallel, progress=None):
    return WorkerPool(open_sim_host(tmp_path).ports, tuple(jobs), parallel, progress or RecordedProgress())


def test_one_that_fails_is_undone_alone(tmp_path):
    log, events = [], RecordedProgress()
    jobs = [job("a", Step("a1", log)), job("b", Step("b1", log), Step("b2", log, fail)), job("c", Step("c1", log))]
    at_work = worker_pool(tmp_path, jobs, 1, events)
    at_work.run()
    assert at_work.created == ["a", "c"]
    assert at_work.failed["b"].undone == ["b2", "b1"]
    assert log == ["do a1", "do b1", "do b2", "undo b2", "undo b1", "do c1"]
    assert events.lines == ["1/3 0 a: created", "2/3 1 failed: b: the card is on fire", "3/3 1 c: created"]


def test_the_requested_number_of_workers_run(tmp_path):
    """Each waits until four have arrived: with fewer threads the barrier breaks, with more the count would."""
    barrier = threading.Barrier(4)
    inside, most, guard = [], [], threading.Lock()

    def enter():
        with guard:
            inside.append(1)
            most.append(len(inside))
        barrier.wait(WAIT_SECONDS)
        with guard:
            inside.pop()

    at_work = worker_pool(tmp_path, [job(f"vm-{n}", Step("s", [], enter)) for n in range(8)], 4)
    at_work.run()
    assert len(at_work.created) == 8
    assert max(most) == 4


def test_after_the_first_signal_none_starts_and_partial_work_is_undone(tmp_path):
    log, stopped, begun = [], threading.Event(), threading.Event()

    def signal(done):
        begun.wait(WAIT_SECONDS)
        raise Interrupted("stopped by SIGINT", signal_number=2)

    def wait():
        begun.set()
        stopped.wait(WAIT_SECONDS)

    jobs = [job("a", Step("a1", log)), job("b", Step("b1", log, wait), Step("b2", log)), job("c", Step("c1", log))]
    at_work = worker_pool(tmp_path, jobs, 1, RecordedProgress(signal))
    release = threading.Thread(target=_when, args=(lambda: at_work.interruption is not None, stopped))
    release.start()
    at_work.run()
    release.join()
    assert at_work.created == ["a"]
    assert at_work.failed["b"].code == "interrupted"
    assert at_work.failed["b"].undone == ["b1"]
    assert log == ["do a1", "do b1", "undo b1"]
    assert at_work.interruption.signal_number == 2


def test_the_second_signal_stops_the_undo_and_says_what_is_left(tmp_path):
    log, signals, halted, undoing = [], [], threading.Event(), threading.Event()

    def signal(done):
        signals.append(done)
        raise Interrupted("stopped by SIGTERM", signal_number=15) if len(signals) == 1 else KeyboardInterrupt

    def take_back():
        undoing.set()
        halted.wait(WAIT_SECONDS)

    def wait():
        _when(lambda: at_work.interruption is not None, threading.Event())

    slow = job("slow", Step("s1", log), Step("s2", log, wait, take_back), Step("s3", log))
    late = job("late", Step("l1", log, lambda: undoing.wait(WAIT_SECONDS)))
    jobs = [job("first", Step("f1", log)), slow, late]
    at_work = worker_pool(tmp_path, jobs, 3, RecordedProgress(signal))
    release = threading.Thread(target=_when, args=(lambda: at_work.abort_undo, halted))
    release.start()
    at_work.run()
    release.join()
    assert at_work.failed["slow"].undone == ["s2"]
    assert at_work.failed["slow"].left == ["s1"]
    assert sorted(at_work.created) == ["first", "late"]


def _when(condition, event):
    """Set an event when a condition holds; poll the condition for a while."""
    pause = threading.Event()
    for _ in range(int(WAIT_SECONDS * 200)):
        if condition():
            break
        pause.wait(0.005)
    event.set()


def test_a_bug_in_one_is_reported_and_the_others_go_on(tmp_path):
    def bug():
        raise ZeroDivisionError("oops")

    at_work = worker_pool(tmp_path, [job("a", Step("a1", [], bug)), job("b", Step("b1", []))], 2)
    at_work.run()
    assert at_work.created == ["b"]
    assert "oops" in at_work.failed["a"].message


@LongStep.register
class Copy(Step):
    """A step that reports how far it is."""

    def perform_with_progress(self, ports, report):
        self.act(report)


def test_a_copy_is_shown_by_the_main_thread_until_it_ends(tmp_path):
    seen, shown = [], threading.Event()

    class Shown(RecordedProgress):
        def on_step_progress(self, number, text, percent):
            assert threading.current_thread() is threading.main_thread()
            seen.append((text, percent))
            shown.set()

    def copy(report):
        report(40.0)
        assert shown.wait(WAIT_SECONDS)

    at_work = worker_pool(tmp_path, [job("a", Copy("copy", [], copy))], 1, Shown())
    at_work.run()
    assert (at_work.created, at_work.copies) == (["a"], {})
    assert seen[0] == ("copy", 40.0)


def test_a_signal_stops_a_copy(tmp_path):
    log = []

    def copy(report):
        at_work.interruption = Interrupted("stopped", signal_number=2)
        report(40.0)
        log.append("went on")

    at_work = worker_pool(tmp_path, [job("a", Copy("copy", log, copy))], 1)
    at_work.run()
    assert log == ["undo copy"]
    assert isinstance(at_work.failed["a"], Interrupted)
