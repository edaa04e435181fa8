"""Text of strangers inside of HTML pages: it stays text, and never becomes markup or code."""

from __future__ import annotations

import json
from typing import Any

UNSAFE = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


def script_json(content: Any) -> str:
    """Return JSON that means the same inside a script element, whatever text is in it."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False).translate(UNSAFE)
