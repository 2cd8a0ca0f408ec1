# SPDX-License-Identifier: Apache-2.0
"""Read VMs of other hypervisors from their files: pure, text to `ForeignFile`, one module for each format.

`recognize.parse_foreign_file` is the way in; `imported` has the values that every format is read into.
"""
