# SPDX-License-Identifier: Apache-2.0
"""The placement benchmark: the default policy and three others on the same fleets and requests.

`python -m tests.bench.placement` runs it, and writes docs/reports/placement.md and the plot of
docs/explanation/placement.md.
"""
