# SPDX-License-Identifier: Apache-2.0
"""The placement benchmark: peers' policies on the same fleets and requests, compared with two references.

`python -m tests.bench.placement` runs it and writes docs/placement.md.
"""
