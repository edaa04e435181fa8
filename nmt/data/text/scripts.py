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
    "TIBETAN": "bo dz",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy",
    "ETHIOPIC": "am ti",
    "HANGUL,CJK": "ko",
    "HIRAGANA,KATAKANA,CJK": "ja",
    "CJK": "yue zh",
}
"""The scripts, with commas between -> the languages that are written in them."""
ALIASES = {"HALFWIDTH": "KATAKANA", "FULLWIDTH": "LATIN"}
"""Beginnings of names of letters that are no scripts -> the scripts of these letters."""


def _table(text: str) -> dict[str, str]:
    return dict(row.split(":") for row in text.split())


_SCRIPT_CODES = _table(  # of ISO 15924
    "Arab:ARABIC Armn:ARMENIAN Beng:BENGALI Cyrl:CYRILLIC Deva:DEVANAGARI Ethi:ETHIOPIC Geor:GEORGIAN "
    "Grek:GREEK Gujr:GUJARATI Guru:GURMUKHI Hang:HANGUL,CJK Hans:CJK Hant:CJK Hebr:HEBREW "
    "Jpan:HIRAGANA,KATAKANA,CJK Khmr:KHMER Knda:KANNADA Kore:HANGUL,CJK Laoo:LAO Latn:LATIN "
    "Mlym:MALAYALAM Mymr:MYANMAR Orya:ORIYA Sinh:SINHALA Taml:TAMIL Telu:TELUGU Tfng:TIFINAGH "
    "Thai:THAI Tibt:TIBETAN"
)
_TWO_LETTERS = _table(  # ISO 639-3 to ISO 639-1
    "aar:aa abk:ab afr:af aka:ak amh:am ara:ar arg:an asm:as ava:av ave:ae aym:ay aze:az bak:ba "
    "bam:bm bel:be ben:bn bis:bi bod:bo bos:bs bre:br bul:bg cat:ca ces:cs cha:ch che:ce chu:cu "
    "chv:cv cor:kw cos:co cre:cr cym:cy dan:da deu:de div:dv dzo:dz ell:el eng:en epo:eo est:et "
    "eus:eu ewe:ee fao:fo fas:fa fij:fj fin:fi fra:fr fry:fy ful:ff gla:gd gle:ga glg:gl glv:gv "
    "grn:gn guj:gu hat:ht hau:ha hbs:sh heb:he her:hz hin:hi hmo:ho hrv:hr hun:hu hye:hy ibo:ig "
    "ido:io iii:ii iku:iu ile:ie ina:ia ind:id ipk:ik isl:is ita:it jav:jv jpn:ja kal:kl kan:kn "
    "kas:ks kat:ka kau:kr kaz:kk khm:km kik:ki kin:rw kir:ky kom:kv kon:kg kor:ko kua:kj kur:ku "
    "lao:lo lat:la lav:lv lim:li lin:ln lit:lt ltz:lb lub:lu lug:lg mah:mh mal:ml mar:mr mkd:mk "
    "mlg:mg mlt:mt mon:mn mri:mi msa:ms mya:my nau:na nav:nv nbl:nr nde:nd ndo:ng nep:ne nld:nl "
    "nno:nn nob:nb nor:no nya:ny oci:oc oji:oj ori:or orm:om oss:os pan:pa pli:pi pol:pl por:pt "
    "pus:ps que:qu roh:rm ron:ro run:rn rus:ru sag:sg san:sa sin:si slk:sk slv:sl sme:se smo:sm "
    "sna:sn snd:sd som:so sot:st spa:es sqi:sq srd:sc srp:sr ssw:ss sun:su swa:sw swe:sv tah:ty "
    "tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tir:ti ton:to tsn:tn tso:ts tuk:tk tur:tr twi:tw "
    "uig:ug ukr:uk urd:ur uzb:uz ven:ve vie:vi vol:vo wln:wa wol:wo xho:xh yid:yi yor:yo zha:za "
    "zho:zh zul:zu "
    # those that NLLB-200 has of several that share a code of two letters
    "als:sq arb:ar ayr:ay azj:az cmn:zh ekk:et gaz:om khk:mn kmr:ku lvs:lv npi:ne ory:or pbt:ps "
    "pes:fa plt:mg prs:fa quy:qu swh:sw uzn:uz ydd:yi zsm:ms"
)


def language_of(name: str) -> str:
    """Return the language of a name such as pt_BR or deu_Latn, in small letters, without what follows.

    A code of three letters gives that of two where there is one: de of deu, zh of cmn.
    """
    language = re.split("[-_]", name.lower())[0]
    return _TWO_LETTERS.get(language, language)


def scripts_of_language(name: str) -> str | None:
    """Return the scripts, with commas between, of a language such as ru, or by name, as of srp_Latn.

    None stands for scripts that are not known here.
    """
    said = (_SCRIPT_CODES[part] for part in re.split("[-_]", name) if part in _SCRIPT_CODES)
    own = language_of(name)
    return next(said, next((names for names, known in SCRIPTS_OF.items() if own in known.split()), None))


def script_of(letter: str) -> str:
    """Return the script of a letter: the first word of its name, such as LATIN; "" for one without a name."""
    word = re.split("[ -]", unicodedata.name(letter, ""))[0]
    return sys.intern(ALIASES.get(word, word))
