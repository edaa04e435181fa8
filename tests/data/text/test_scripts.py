"""Languages and their scripts by the names that corpora give them."""

from __future__ import annotations

import pytest

from nmt.data.text.scripts import SCRIPTS_OF, language_of, scripts_of_language


@pytest.mark.parametrize(
    ("name", "language", "scripts"),
    [
        ("de", "de", "LATIN"),
        ("pt_BR", "pt", "LATIN"),
        ("deu_Latn", "de", "LATIN"),
        ("RUS", "ru", "CYRILLIC"),
        ("arb_Arab", "ar", "ARABIC"),
        ("zho_Hant", "zh", "CJK"),
        ("cmn", "zh", "CJK"),
        ("jpn_Jpan", "ja", "HIRAGANA,KATAKANA,CJK"),
        ("kor_Hang", "ko", "HANGUL,CJK"),
        ("sr", "sr", "CYRILLIC"),
        ("sr-Latn-RS", "sr", "LATIN"),
        ("srp_Latn", "sr", "LATIN"),
        ("ace_Arab", "ace", "ARABIC"),
        ("ace", "ace", None),
    ],
)
def test_a_language_and_its_scripts_by_any_name(name: str, language: str, scripts: str | None) -> None:
    assert (language_of(name), scripts_of_language(name)) == (language, scripts)


def test_languages_are_known_by_the_names_that_other_names_give() -> None:
    languages = " ".join(SCRIPTS_OF.values()).split()
    assert [language_of(name) for name in languages] == languages
