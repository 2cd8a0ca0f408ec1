"""Tests of the host agent: its API, its client, its rights, on simulated hosts."""
