"""Tests of `nmt.doctor`."""
