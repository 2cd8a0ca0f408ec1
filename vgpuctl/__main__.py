# SPDX-License-Identifier: Apache-2.0
"""`python -m vgpuctl` is the program `vgpuctl`."""

from __future__ import annotations

import sys

from vgpuctl.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
