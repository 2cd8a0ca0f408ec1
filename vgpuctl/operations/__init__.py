# SPDX-License-Identifier: Apache-2.0
"""What a user does: each looks, plans (`plans`), and carries the steps out (`steps`) in a `transaction`."""
