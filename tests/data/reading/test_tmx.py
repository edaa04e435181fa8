"""Translation memories: units of TMX as pairs to train on and to score."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from nmt.data.cleaning import filters
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading import files, sources
from nmt.data.reading.files import FilesData
from nmt.data.reading.labels import LabelsData
from nmt.errors import UserError

HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">\n'
    '<header srclang="en"><prop type="x">y</prop></header><body>\n'
)


def unit(*texts: tuple[str, str], properties: str = "") -> str:
    return (
        f"<tu>{properties}"
        + "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in texts)
        + "</tu>\n"
    )


def write(path: Path, *units: str) -> Path:
    path.write_text(f"{HEAD}{''.join(units)}</body></tmx>", encoding="utf-8")
    return path


def read(path: Path, split: Split = Split.train, **keys: object) -> ParallelText:
    cfg = FilesData(**{split.value: str(path), **keys})  # type: ignore[arg-type]
    return files.stream(cfg, split).read()


def error_of(path: Path, split: Split = Split.train, **keys: object) -> str:
    with pytest.raises(UserError) as caught:
        read(path, split, **keys)
    return str(caught.value)


def test_texts_of_the_two_languages_are_pairs_without_codes_of_formatting(tmp_path: Path) -> None:
    coded = 'Press <bpt i="1">{\\b <sub>bold</sub></bpt><hi>F1</hi><ept i="1">}</ept>\n  now &amp; wait<ph/>.'
    path = write(
        tmp_path / "memory.tmx",
        unit(("EN_us", "A dog."), ("de-DE", "Ein Hund."), ("fr", "Un chien.")),
        "<tu><note>said <hi>twice</hi></note>"
        f'<tuv lang="en"><prop type="p">no</prop><seg>{coded}</seg></tuv>'
        '<tuv lang="de"><seg><it pos="begin">&lt;i&gt;</it>Ja&#x20AC;<ut>x</ut></seg></tuv></tu>',
    )
    assert read(path) == ParallelText(["A dog.", "Press F1   now & wait."], ["Ein Hund.", "Ja€"])
    assert read(path, src="de", tgt="fr").part(slice(1)) == ParallelText(["Ein Hund."], ["Un chien."])
    packed = tmp_path / "packed.tmx.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed) == read(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "iso-8859-1"])
def test_a_file_has_the_encoding_that_it_says(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "memory.tmx", unit(("en", "A cow."), ("de", "Eine Kühe.")))
    text = path.read_text(encoding="utf-8").replace("UTF-8", encoding.removesuffix("-sig"))
    path.write_bytes(text.encode(encoding))
    assert read(path).tgt == ["Eine Kühe."]


def test_a_unit_without_one_of_the_languages_is_counted_in_training_and_refused_in_evaluation(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "memory.tmx",
        unit(("en", "One."), ("de", "Eins.")),
        unit(("en", "Two."), ("fr", "Deux.")),
        unit(("fr", "Trois.")),
    )
    text = read(path)
    assert text == ParallelText(["One.", "Two.", ""], ["Eins.", "", ""])
    kept, report = filters.filter_pairs(text, FilesData(train=str(path)))
    assert (len(kept), report.dropped["empty"]) == (1, 2)
    assert (
        "memory.tmx:6: the unit has no text in de, only en, fr; leave such units out, or set data.tgt"
        in error_of(path, Split.test)
    )


def test_a_variety_is_chosen_where_there_are_several(tmp_path: Path) -> None:
    both = unit(("en-US", "Color."), ("en-GB", "Colour."), ("de", "Farbe."))
    path = write(tmp_path / "memory.tmx", both, unit(("en-GB", "Grey."), ("de-AT", "Grau.")))
    assert error_of(path).endswith(
        "memory.tmx:5: the unit has 2 texts in en-us, en-gb; set data.src or data.src_column to one"
    )
    assert read(path, src_column="en-GB") == ParallelText(["Colour.", "Grey."], ["Farbe.", "Grau."])
    write(path, unit(("en", "Color."), ("en-GB", "Colour."), ("de", "Farbe.")))
    assert read(path).src == ["Color."]  # the language itself, where it is there
    write(path, unit(("en", "a"), ("en", "a"), ("de", "b")))
    assert read(path).src == ["a"]
    write(path, unit(("en", "a"), ("en", "c"), ("de", "b")))
    assert error_of(path).endswith("the unit has 2 texts in en; leave one of them there")


def test_properties_are_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path / "memory.tmx",
        *(
            unit(
                ("en", src),
                ("de", src.upper()),
                properties=f'<prop type="doc">{doc}</prop><prop type="w">{weight}</prop>',
            )
            for src, doc, weight in (("a", "1", "0.5"), ("b", "1", "2"), ("c", "2", "1"))
        ),
        unit(("en", "d"), ("de", "D"), properties='<prop type="w">x</prop>'),
    )
    cfg = FilesData(train=str(path), context=1, context_short=0.0, document_column="doc")
    assert sources.stream(cfg, Split.train).read().src == ["a", "a <brk> b", "c", "c <brk> d"]
    assert "memory.tmx:8: a weight must be a number from 0, but is 'x'" in error_of(path, weights="w")
    assert "memory.tmx:5 has no column 'topic', only en, de, doc, w" in error_of(path, weights="topic")
    labelled = LabelsData(test=str(path), text_column="de", label_column="w")
    assert sources.stream(labelled, Split.test).read().tgt == ["0.5", "2", "1", "x"]


def test_a_unit_of_other_languages_ends_no_document(tmp_path: Path) -> None:
    path = write(
        tmp_path / "memory.tmx",
        unit(("en", "a"), ("de", "A")),
        unit(("fr", "z")),
        unit(("en", "b"), ("de", "B")),
    )
    cfg = FilesData(train=str(path), context=1, context_short=0.0)
    assert sources.stream(cfg, Split.train).read().src == ["a", "a <brk> b"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "1: not XML: no element found at character 1"),
        (f"{HEAD}<tu>", "5: not XML: no element found at character 5"),
        (f"{HEAD}</tmx>", "5: not XML: mismatched tag at character 3"),
        (f"{HEAD}<tu><tuv><seg>", "5: <tuv> says no language; give it xml:lang=..."),
        ("<html/>", "1: not TMX, but XML with <html> around it"),
        ("<tmx>\n<tu>&#x1f;", "2: not XML: reference to invalid character number at character 5"),
        ('<?xml version="1.0" encoding="klingon"?><tmx/>', "1: unknown encoding: klingon; convert"),
        ('<?xml version="1.0" encoding="gbk"?><tmx/>', "1: multi-byte encodings are not supported; convert"),
        (
            '<!DOCTYPE tmx [<!ENTITY lol "lol">]><tmx>&lol;</tmx>',
            "1: the entity 'lol' is defined here, which is not read",
        ),
        (f"{HEAD}<tu>&nbsp;", "5: the entity &nbsp; is not known; write its character instead"),
    ],
)
def test_what_is_no_memory_is_told_with_its_line(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "memory.tmx"
    path.write_text(content, encoding="utf-8")
    assert f"data.train: {path}:{told}" in error_of(path)


def test_a_memory_without_the_language_names_those_that_it_has(tmp_path: Path) -> None:
    path = write(tmp_path / "memory.tmx", unit(("en-US", "a"), ("german", "b")))
    assert error_of(path) == (
        f"data.tgt=de: {path} has no column 'de', only en-us, german; set data.tgt or data.tgt_column"
    )
    assert "has no column 'en', only no units" in error_of(write(tmp_path / "empty.tmx"))


def test_a_memory_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.reading.tmx.BLOCK_BYTES", 7)
    path = write(tmp_path / "memory.tmx", *(unit(("en", f"a{i} ü"), ("de", f"b{i}")) for i in range(30)))
    assert read(path) == ParallelText([f"a{i} ü" for i in range(30)], [f"b{i}" for i in range(30)])


def test_of_a_long_segment_no_more_is_kept_than_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.data.reading.tmx.MAX_LINE_CHARS", 1000)
    monkeypatch.setattr("nmt.data.reading.tmx.BLOCK_BYTES", 1 << 16)
    path = write(tmp_path / "memory.tmx", unit(("en", "xyz\n" * (1 << 20)), ("de", "b")))
    tracemalloc.start()
    try:
        text = read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(text.src[0]) == 1001
    assert peak < 1 << 20
