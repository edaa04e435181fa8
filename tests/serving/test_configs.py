"""The limits of a server."""

from __future__ import annotations

import pytest

from nmt.errors import UserError
from nmt.serving.configs import ServingConfig


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"port": 65536}, r"serve.port must be in \[0, 65535\], but is 65536"),
        ({"max_lines": 0}, "serve.max_lines must be at least 1, but is 0"),
        ({"timeout_seconds": 0}, r"serve.timeout_seconds must be in \(0, 86400\], but is 0"),
        ({"host": " "}, "serve.host must be an address, but is empty"),
        ({"token": ""}, "serve.token must not be empty"),
        ({"token": "gehe\N{LATIN SMALL LETTER I WITH DIAERESIS}m"}, "serve.token must have printable ASCII"),
    ],
)
def test_what_is_out_of_range_is_refused(limits: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ServingConfig(**limits)  # type: ignore[arg-type]
