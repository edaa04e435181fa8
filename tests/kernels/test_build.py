"""The kernels can be built wherever there is a compiler; elsewhere most tests of this room are skipped."""

from __future__ import annotations

import os
import platform
import shutil
import sys

import pytest

from nmt import kernels


@pytest.mark.skipif(
    sys.platform != "linux"
    or platform.machine() != "x86_64"
    or not (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")),
    reason="needs Linux on x86-64 with a C++ compiler",
)
def test_the_kernels_are_built_wherever_there_is_a_compiler() -> None:
    assert kernels.problem() == ""
