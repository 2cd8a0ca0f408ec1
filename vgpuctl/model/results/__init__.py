# SPDX-License-Identifier: Apache-2.0
"""The result of every command as a record: the table for people, the JSON `data` and its schema come from these.

Units are in the names, addresses and ids are strings, unknown is None. Fields are added, never renamed. One module for
each subject.
"""
