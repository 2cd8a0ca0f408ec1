"""Tests of the simulated host."""
