# SPDX-License-Identifier: Apache-2.0
"""Moore Threads: vGPUs as mdevs on the card itself. `scheduler.mtgpu` has how their time is divided.

Source: docs.mthreads.com, MT vGPU 2.9.2. Nobody has tried this on such a card.
"""

from __future__ import annotations

from vgpuctl.makers.maker import Maker


class MooreThreads(Maker):
    """Moore Threads."""

    name = "Moore Threads"
    vendor_id = "1ed5"
    type_prefix = "mtgpu-"
    vgpu_driver = "mtgpu"
    has_displays = False
    scheduler_hint = None
