# SPDX-License-Identifier: Apache-2.0
"""The benchmark of placement: peers' policies, the same fleets and requests for all, two references, one page.

`python -m tests.bench.placement` runs it and writes docs/placement.md.
"""
