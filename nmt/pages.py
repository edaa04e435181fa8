"""HTML pages with text of strangers inside: it stays text, and never becomes markup or code.

A page is a file of the package with a script that draws its data; it needs no server, no network and no other
file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

UNSAFE = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})
PLACEHOLDER = '{"here": "the data"}'
"""Placeholder of the data in the file of a page."""


def page_with(template: Path, content: Any) -> str:
    """Return the page of the file `template`, whose script reads `content`."""
    return template.read_text(encoding="utf-8").replace(PLACEHOLDER, script_json(content), 1)


def script_json(content: Any) -> str:
    """Return JSON that means the same inside a script element, whatever text is in it."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).translate(UNSAFE)
