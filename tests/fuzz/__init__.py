# SPDX-License-Identifier: Apache-2.0
"""Sends input that no person would write, generated from a seed, to every surface, and checks the invariants.

`python -m tests.fuzz --cases N --seed S [--surface NAME]` runs any number of cases. `test_fuzz.py` runs some.
"""
