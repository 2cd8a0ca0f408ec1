# SPDX-License-Identifier: Apache-2.0
"""Input that no person writes, from a seed: every way in, and the invariants for any input.

`python -m tests.fuzz --cases N --seed S [--surface NAME]` runs any number of cases; `test_fuzz.py` runs some.
"""
