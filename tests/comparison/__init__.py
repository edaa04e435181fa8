"""Tests of `nmt.comparison`."""
