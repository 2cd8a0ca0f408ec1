"""Moves that are interrupted end with the VM on one host, whole; `python3 -m tests.lab moves` tries more instants."""

from __future__ import annotations

import pytest

from tests.lab.move_kills import ACTS, interrupt
from tests.lab.moving import Site
from tests.lab.pair import Pair


@pytest.mark.deadline(1800)
@pytest.mark.parametrize("act", ACTS)
def test_an_interrupted_move_ends_on_one_host(pair: Pair, act: str) -> None:
    site = Site(pair)
    interrupt(site, pair.source, pair.target, act, 3.0)
