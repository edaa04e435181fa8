"""What decoding.allowed leaves of a vocabulary, and translations that have nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.cli import main
from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import EOS_ID, UNK_ID
from nmt.data.tokens.shortlist import build_shortlist
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import Case, TokenizerConfig, TokenizerKind
from nmt.decoding.configs import BeamConfig
from nmt.errors import UserError
from nmt.files import write_lines
from nmt.runs.opened import Run
from nmt.runs.opening import open_run
from nmt.translation.allowed import AllowedTokens
from nmt.translation.requests import Request
from tests.runs.untrained import GPT, LETTERS, untrained

LINES = ["ein Mann reitet auf einem Pferd", "zwei Hunde spielen im Schnee", "der Hund rennt über die Wiese"]
TEXT = ParallelText(LINES * 5, LINES * 5)


def tokenizer(kind: TokenizerKind = TokenizerKind.bpe, **keys: Any) -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(kind=kind, vocab_size=90, **keys), TEXT)


def pieces(tok: Tokenizer, file: Path, *lines: str, **keys: Any) -> tuple[set[str], list[str]]:
    """Return the pieces that a file of `lines` leaves, without EOS, and what is told."""
    write_lines(file, lines)
    told = list[str]()
    allowed = AllowedTokens(BeamConfig(allowed=str(file), **keys), tok, told.append).of([[5]])
    assert allowed is not None
    ids = allowed[0].tolist()
    assert ids == sorted({*ids})
    assert EOS_ID in ids
    assert UNK_ID not in ids
    return {*tok.tgt_spellings([token for token in ids if token != EOS_ID])}, told


def test_words_leave_the_pieces_that_spell_them(tmp_path: Path) -> None:
    tok, file = tokenizer(), tmp_path / "words.txt"
    found, told = pieces(tok, file, "Hund", "", "  der Schnee ")
    spelt = {piece.text for line in tok.tgt_pieces(["Hund", "der Schnee"]) for piece in line[:-1]}
    assert found == spelt
    assert told == [f"decoding.allowed={file}: {len(spelt) + 1} of 90 pieces of the vocabulary are left"]


@pytest.mark.parametrize("kind", [TokenizerKind.bpe, TokenizerKind.char])
def test_characters_leave_all_pieces_that_have_no_others(kind: TokenizerKind, tmp_path: Path) -> None:
    tok = tokenizer(kind)
    found, _ = pieces(tok, tmp_path / "letters.txt", *"deinr")
    everything = tok.tgt_spellings(range(EOS_ID + 1, tok.tgt_vocab_size))
    assert found == {piece for piece in everything if {*piece} <= {*"▁deinr"}}
    assert len(found) > 5


def test_a_line_that_the_vocabulary_cannot_spell_is_told_once(tmp_path: Path) -> None:
    tok, file = tokenizer(), tmp_path / "words.txt"
    found, told = pieces(tok, file, "Hund", "Ψ", "Жук")
    assert found == pieces(tok, tmp_path / "other.txt", "Hund")[0]
    assert told[1:] == [f"decoding.allowed={file}: the vocabulary cannot spell line 2, 3, left out"]
    again = list[str]()
    AllowedTokens(BeamConfig(allowed=str(file)), tok, again.append)
    assert again == []


def test_bytes_are_allowed_only_where_they_spell_what_is_listed(tmp_path: Path) -> None:
    tok = Tokenizer.train(
        TokenizerConfig(kind=TokenizerKind.bpe, vocab_size=340, byte_fallback=True),
        ParallelText([*LINES, "< 0 x 4 1 >"] * 5, [*LINES, "< 0 x 4 1 >"] * 5),
    )
    assert len(tok.tgt_byte_ids) == 256
    assert pieces(tok, tmp_path / "signs.txt", *"<0x41>")[0] & BYTES == set()
    assert pieces(tok, tmp_path / "omega.txt", "Ω")[0] & BYTES == {"<0xCE>", "<0xA9>"}


BYTES = {f"<0x{number:02X}>" for number in range(256)}


def test_case_markup_lets_the_marks_of_capitals_through(tmp_path: Path) -> None:
    tok = tokenizer(TokenizerKind.char, case=Case.markup)
    assert "⇧" not in pieces(tok, tmp_path / "small.txt", "h", "u")[0]
    assert {"h", "u"} <= pieces(tok, tmp_path / "small.txt", "h", "u")[0]
    assert {"⇧", "h"} <= pieces(tok, tmp_path / "large.txt", "Hu")[0]


def test_a_shortlist_and_allowed_leave_what_both_do(tmp_path: Path) -> None:
    tok, file = tokenizer(), tmp_path / "shortlist.npz"
    shortlist = build_shortlist([TEXT], tok, translations=2, frequent=3)
    shortlist.save(file)
    write_lines(tmp_path / "words.txt", ["Hund", "Wiese"])
    sources = tok.encode_src(LINES)
    both = BeamConfig(allowed=str(tmp_path / "words.txt"), shortlist=str(file))
    alone = BeamConfig(allowed=str(tmp_path / "words.txt"))
    found = AllowedTokens(both, tok, print).of(sources)
    own = AllowedTokens(alone, tok, print).of(sources)
    assert found is not None
    assert own is not None
    for src, ids, words in zip(sources, found, own, strict=True):
        assert {*ids.tolist()} == {*shortlist.allowed(src).tolist()} & {*words.tolist()}
        assert EOS_ID in ids
    assert AllowedTokens(BeamConfig(), tok, print).of(sources) is None
    assert np.array_equal(own[0], own[1])


def test_a_file_that_leaves_nothing_is_one_error(tmp_path: Path) -> None:
    tok, file = tokenizer(), tmp_path / "words.txt"
    with pytest.raises(UserError, match=r"decoding.allowed: .*words.txt cannot be read: No such file"):
        AllowedTokens(BeamConfig(allowed=str(file)), tok, print)
    for lines in (["", " "], ["Ψ"]):
        write_lines(file, lines)
        with pytest.raises(UserError, match=r"words.txt has no word, phrase or character that the vocab"):
            AllowedTokens(BeamConfig(allowed=str(file)), tok, print)
    with pytest.raises(UserError, match=r"decoding.allowed must name a file, but is empty"):
        BeamConfig(allowed=" ")
    with pytest.raises(UserError, match=r"or decoding.allowed=null"):
        BeamConfig(allowed=str(file), cuda_graphs=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(untrained(tmp_path_factory.mktemp("allowed") / "run"))


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 4, "n_best": 3, "coverage_penalty": 0.1},
    "diverse": {"beam_size": 4, "n_best": 4, "num_groups": 2},
    "sampling": {"n_best": 3},
    "mbr": {"num_samples": 4, "beam_size": 2, "n_best": 2},
    "int8": {"beam_size": 2, "precision": "int8"},
}


@pytest.mark.parametrize("name", SEARCHES)
def test_translations_have_only_what_is_allowed(name: str, run: Run, tmp_path: Path) -> None:
    from nmt.config.compose import compose
    from nmt.config.roots import TranslateConfig
    from nmt.verbs import VERBS

    strategy = name if name in ("sampling", "mbr") else "beam"
    (composed,) = compose(VERBS["translate"], [f"run={run.path}", f"decoding={strategy}"])
    search = composed.to_config(TranslateConfig).decoding
    lengths = {"min_length": 2, "max_length_ratio": 1.0, "max_length_offset": 3}
    settings = SEARCHES[name] | lengths
    lines = ["ab ba", "cd", "hh gf"]
    free = {char for one in run.translate(lines, search, **settings) for char in one.text}
    letters = [letter for letter in LETTERS if letter not in free][:2] or [LETTERS[0]]
    write_lines(tmp_path / "letters.txt", letters)
    found = list(run.translate(lines, search, allowed=str(tmp_path / "letters.txt"), **settings))
    texts = [one.text for best in found for one in (best, *best.alternatives)]
    assert all({*text} <= {*letters, " "} for text in texts)
    assert any(text.strip() for text in texts)
    assert free - {*letters, " "}


def test_what_a_request_asks_for_is_allowed_in_addition(run: Run, tmp_path: Path) -> None:
    write_lines(tmp_path / "letters.txt", "ac")
    requests = [Request("ab ba", prefix="hg "), Request("cd", must=["eb"]), Request("cd")]
    settings: dict[str, Any] = {"beam_size": 8, "max_length_offset": 6, "allowed": f"{tmp_path}/letters.txt"}
    begun, held, plain = run.translate(requests, **settings)
    assert begun.text.startswith("hg")
    assert "eb" in held.text
    assert {*begun.text} <= {*"ac hg"}
    assert {*held.text} <= {*"ac eb"}
    assert {*plain.text} <= {*"ac "}


def test_a_file_job_depends_on_the_content_of_the_file(run: Run, tmp_path: Path) -> None:
    from nmt.verbs.translate import search_settings

    file = tmp_path / "letters.txt"
    write_lines(file, "ac")
    first = search_settings(BeamConfig(allowed=str(file)))
    write_lines(file, "acd")
    second = search_settings(BeamConfig(allowed=str(file)))
    assert {key for key in first if first[key] != second[key]} == {"decoding.allowed.sha256"}
    assert not any("sha256" in key for key in search_settings(BeamConfig()))


def test_a_language_model_and_an_export_refuse_it(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "letters.txt", "ac")
    key = f"decoding.allowed={tmp_path / 'letters.txt'}"
    lm = untrained(tmp_path / "lm", "task=language_model", model=GPT)
    assert main(["generate", f"run={lm}", key]) == 2
    assert "allowed and n_best are for translations; leave them out to continue" in capsys.readouterr().err
    assert main(["export", f"run={run.path}", "format=safetensors", f"output={tmp_path / 'x'}", key]) == 2
    assert "has no place in an exported model" in capsys.readouterr().err
    assert main(["train", "task=language_model", "model=gpt", "data=toy", "tokenizer=char", key]) == 2
    assert "decoding.allowed is for task=translation; leave it out" in capsys.readouterr().err
