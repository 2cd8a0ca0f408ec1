# SPDX-License-Identifier: Apache-2.0
"""Threads that accounts share: none can take all of them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from vgpuctl.agent import fair_threads
from vgpuctl.agent.fair_threads import FairThreads
from vgpuctl.agent.protocol import TooMany
from vgpuctl.model.caller import Caller, Rights

ROOT = Caller(0, "root", Rights.ROOT)
BOB, EVE = (Caller(uid, name, Rights.VIEWER) for uid, name in ((7, "bob"), (8, "eve")))


def test_no_account_takes_all_threads_and_root_always_finds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_threads, "TURN_SECONDS", 60.0)
    release, most, running, lock = threading.Event(), Counter[str](), Counter[str](), threading.Lock()

    def read(name: str) -> str:
        with lock:
            running[name] += 1
            most[name] = max(most[name], running[name])
        assert release.wait(60)
        with lock:
            running[name] -= 1
        return name

    async def ask() -> list[str]:
        threads = FairThreads(8, "read")
        asked = [asyncio.create_task(threads.run(one, read, one.account)) for one in (BOB,) * 20 + (EVE,) * 20]
        while sum(most.values()) < 6:
            await asyncio.sleep(0.001)
        asked += [asyncio.create_task(threads.run(ROOT, read, "root")) for _ in range(2)]
        try:
            async with asyncio.timeout(60):
                while most["root"] < 2:
                    await asyncio.sleep(0.001)
            assert (most["bob"], most["eve"]) == (4, 2)
        finally:
            release.set()
        done = await asyncio.gather(*asked)
        threads.close()
        return done

    done = asyncio.run(ask())
    assert Counter(done) == {"bob": 20, "eve": 20, "root": 2}
    assert most["bob"] == 4
    assert most["eve"] <= 4


def test_who_waits_too_long_for_a_turn_is_told_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_threads, "TURN_SECONDS", 0.05)
    release = threading.Event()

    async def ask() -> None:
        threads = FairThreads(8, "read")
        asked = [asyncio.create_task(threads.run(BOB, release.wait, 60)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(TooMany, match="4 requests of bob run already") as caught:
            await threads.run(BOB, str, 1)
        assert caught.value.hint
        assert await threads.run(EVE, str, 1) == "1"
        release.set()
        await asyncio.gather(*asked)
        assert await threads.run(BOB, str, 2) == "2"
        threads.close()

    asyncio.run(ask())
