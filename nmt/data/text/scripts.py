"""The scripts of letters and of languages, as Unicode names them."""

from __future__ import annotations

import re
import sys
import unicodedata

SCRIPTS_OF = {
    "LATIN": "af az bs ca cs cy da de en eo es et eu fi fr fy ga gd gl hr hu id is it la lb lt lv ms mt nb "
    "nl nn no oc pl pt ro sk sl sq sv sw tl tr uz vi xh yo zu",
    "CYRILLIC": "be bg kk ky mk mn ru sr tg tt uk",
    "GREEK": "el",
    "ARABIC": "ar fa ps ug ur",
    "HEBREW": "he yi",
    "DEVANAGARI": "hi mr ne sa",
    "BENGALI": "as bn",
    "GURMUKHI": "pa",
    "GUJARATI": "gu",
    "TAMIL": "ta",
    "TELUGU": "te",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "SINHALA": "si",
    "THAI": "th",
    "LAO": "lo",
    "MYANMAR": "my",
    "KHMER": "km",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy",
    "ETHIOPIC": "am ti",
    "HANGUL,CJK": "ko",
    "HIRAGANA,KATAKANA,CJK": "ja",
    "CJK": "zh",
}
"""The scripts, with commas between -> the languages that are written in them."""
ALIASES = {"HALFWIDTH": "KATAKANA", "FULLWIDTH": "LATIN"}
"""Beginnings of names of letters that are no scripts -> the scripts of these letters."""


def language_of(name: str) -> str:
    """Return the language of a name such as pt_BR or deu_Latn, in small letters, without what follows."""
    return re.split("[-_]", name.lower())[0]


def script_of(letter: str) -> str:
    """Return the script of a letter: the first word of its name, such as LATIN; "" for one without a name."""
    word = re.split("[ -]", unicodedata.name(letter, ""))[0]
    return sys.intern(ALIASES.get(word, word))
