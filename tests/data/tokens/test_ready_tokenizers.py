"""Tokenizers of the library `tokenizers` as a run uses them: pieces of the file, our ids, readable errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.data.batches.training_split import ready_remarks
from nmt.data.encoded_pairs import RaggedIds
from nmt.data.parallel_text import ParallelText
from nmt.data.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.data.tokens.adaptation import extended, origins
from nmt.data.tokens.piece_models import EOS, piece_model
from nmt.data.tokens.ready_tokenizers import ready_models
from nmt.data.tokens.shortlist import build_shortlist
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.data.tokens.tokenizer_training import (
    SPECIAL_SPELLINGS,
    Case,
    TagSide,
    TokenizerConfig,
    TokenizerKind,
)
from nmt.errors import UserError
from nmt.translation.requests import Request, Wishes

tokenizers = pytest.importorskip("tokenizers", reason="the extra `tokenizers` is not installed")
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

LINES = [
    "Two young men are outside near many bushes.",
    "A man in an orange hat looks at something.",
    "Zwei junge Männer sind im Freien in der Nähe vieler Büsche.",
    "Ein Mann mit einem orangefarbenen Hut sieht etwas an.",
]
SPECIAL = ["<unk>", "<pad>", "</s>", "<2de>"]


def byte_level() -> Any:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        LINES * 5,
        trainers.BpeTrainer(vocab_size=500, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet),
    )
    return made


def bpe() -> Any:
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.train_from_iterator(LINES * 5, trainers.BpeTrainer(vocab_size=120, special_tokens=SPECIAL))
    return made


def unigram() -> Any:
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.normalizer = normalizers.NFKC()
    made.train_from_iterator(
        LINES * 5, trainers.UnigramTrainer(vocab_size=80, special_tokens=SPECIAL, unk_token="<unk>")
    )
    return made


def word_piece() -> Any:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(LINES * 5, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special))
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    made.enable_truncation(5)
    made.enable_padding()
    return made


def words() -> Any:
    made = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.train_from_iterator(LINES, trainers.WordLevelTrainer(special_tokens=SPECIAL))
    return made


MADE: dict[str, Callable[[], Any]] = {
    "byte_level": byte_level,
    "bpe": bpe,
    "unigram": unigram,
    "word_piece": word_piece,
    "words": words,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tokenizer.json of each kind."""
    path = tmp_path_factory.mktemp("tokenizers")
    for name, make in MADE.items():
        make().save(str(path / f"{name}.json"))
    return path


def ready(path: Path, tags: tuple[str, ...] = (), **fields: Any) -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(path=str(path), **fields), ParallelText(), tags)


@pytest.mark.parametrize("name", MADE)
def test_pieces_are_those_of_the_file_and_give_the_text_again(name: str, folder: Path) -> None:
    own = tokenizers.Tokenizer.from_file(str(folder / f"{name}.json"))
    own.no_truncation()
    made = ready(folder / f"{name}.json")
    given = [f" {line}" if name == "byte_level" else line for line in LINES]
    expected = [own.encode(line, add_special_tokens=False) for line in given]
    pieces = made.src_pieces(LINES)
    assert made.encode_src(LINES) == [[piece.id for piece in line] for line in pieces]
    assert made.flat_src(LINES).ids.tolist() == RaggedIds.of(made.encode_src(LINES)).ids.tolist()
    run = tokenizers.Tokenizer.from_buffer(made.src_model)
    assert [[run.id_to_token(p.id) for p in line[:-1]] for line in pieces] == [e.tokens for e in expected]
    for line, found in zip(LINES, pieces, strict=True):
        assert found[-1] == EOS
        assert "".join(piece.surface for piece in found) == line
        assert "".join(piece.text for piece in found[:-1]).replace("▁", " ").strip() == line
        ids = [piece.id for piece in found[:-1]]
        assert made.decode(ids) == line
        assert [piece.id for piece in made.decoded_pieces(ids)] == [*ids, EOS_ID]
        assert "".join(piece.surface for piece in made.decoded_pieces(ids)) == line
    assert len(set(made.src_spellings(range(made.src_vocab_size)))) == made.src_vocab_size


@pytest.mark.parametrize("name", MADE)
def test_special_ids_are_ours_and_never_read_from_text(name: str, folder: Path) -> None:
    made = ready(folder / f"{name}.json")
    assert tuple(made.tgt_spellings(range(EOS_ID + 1))) == SPECIAL_SPELLINGS
    (ids,) = made.encode_src(["Ein <s> Mann</s> <pad>"])
    assert {PAD_ID, BOS_ID}.isdisjoint(ids)
    assert ids.index(EOS_ID) == len(ids) - 1
    unknown = made.encode_src(["Mann ☃"])[0]
    assert (UNK_ID in unknown) == (name != "byte_level")
    assert made.decode(unknown[:-1]) == ("Mann ☃" if name == "byte_level" else "Mann ⁇ ")
    shown = made.decoded_pieces(unknown[:-1])
    assert "".join(piece.surface for piece in shown) == made.decode(unknown[:-1])
    assert made.encode_src(["", " "]) == [[EOS_ID], [EOS_ID]]
    assert made.decode([PAD_ID, *made.encode_src(["Mann"])[0]]) == "Mann"


@pytest.mark.parametrize("name", MADE)
def test_special_tokens_of_the_file_are_not_read_from_text_unless_the_run_wants_them(
    name: str, tmp_path: Path
) -> None:
    """Other tokens that the file adds are."""
    file = MADE[name]()
    file.add_special_tokens(["<|im_end|>", "<2xy>"])
    file.add_tokens(["<own>"])
    file.save(str(tmp_path / "my.json"))
    made = ready(tmp_path / "my.json", ("<2xy>",))
    line = "<2xy> Ein <|im_end|> Mann <own>"
    turn, tag, own = made.tgt_ids_of(["<|im_end|>", "<2xy>", "<own>"])
    assert UNK_ID not in (turn, tag, own)
    for ids in (made.encode_src([line])[0], [piece.id for piece in made.src_pieces([line])[0]]):
        assert turn not in ids
        assert ids.count(tag) == ids.count(own) == 1
    wanted = ready(tmp_path / "my.json", symbols=["<|im_end|>"])
    assert wanted.tgt_ids_of(["<|im_end|>"])[0] in wanted.encode_src([line])[0]


def test_tokens_with_our_meanings_are_not_there_twice(folder: Path) -> None:
    model = json.loads(ready(folder / "word_piece.json").src_model)
    assert {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}.isdisjoint(model["model"]["vocab"])
    mask = model["model"]["vocab"]["[MASK]"]
    assert [token["id"] for token in model["added_tokens"] if token["special"]] == [0, 1, 2, 3, mask]
    before = json.loads((folder / "bpe.json").read_text())["model"]
    after = json.loads(ready(folder / "bpe.json").src_model)["model"]
    assert len(after["vocab"]) == len(before["vocab"]) + 1  # <s>
    assert after["merges"] == before["merges"]


@pytest.mark.parametrize("name", MADE)
def test_tags_and_symbols_are_one_token_each(name: str, folder: Path) -> None:
    tags = ("<2de>", "<2fr>")
    made = ready(folder / f"{name}.json", tags, symbols=["⟨num⟩"], tag_side=TagSide.both)
    source = "<2fr> Ein ⟨num⟩ Mann"
    pieces = [piece.text.removeprefix("▁") for piece in made.src_pieces([source])[0]]
    assert pieces[0] == "<2fr>"
    assert "⟨num⟩" in pieces
    (target,) = made.encode_tgt(["Ein ⟨num⟩ Mann"], [source])
    assert made.own_start(target) == target[:1] == made.encode_src([source])[0][:1]
    assert made.decode(target[:-1]) == "Ein ⟨num⟩ Mann"


def test_each_side_may_have_its_own(folder: Path, tmp_path: Path) -> None:
    cfg = TokenizerConfig(path=str(folder / "bpe.json"), tgt_path=str(folder / "words.json"), joint=False)
    made = Tokenizer.train(cfg, ParallelText())
    assert made.src_vocab_size != made.tgt_vocab_size
    made.save(tmp_path)
    again = Tokenizer.load(cfg, tmp_path)
    assert again.fingerprint == made.fingerprint
    assert again.encode_src(LINES) == made.encode_src(LINES)
    assert again.encode_tgt(LINES) == made.encode_tgt(LINES)
    assert ready(folder / "bpe.json").fingerprint != made.fingerprint
    assert again.versions == f"tokenizers {tokenizers.__version__}"


def test_the_target_may_be_turned_and_the_source_have_factors(folder: Path) -> None:
    path = folder / "byte_level.json"
    turned = ready(path, right_to_left=True)
    plain = ready(path)
    assert turned.encode_tgt(LINES) == [[*line[-2::-1], EOS_ID] for line in plain.encode_tgt(LINES)]
    assert [turned.decode(ids[:-1]) for ids in turned.encode_tgt(LINES)] == LINES
    told = ready(path, source_factors=["case", "position"])
    sizes = {i % told.src_vocab_size for i in told.encode_src(["Two MEN"])[0]}
    assert sizes == {*plain.encode_src(["two men"])[0]}


def test_labels_are_the_targets_of_a_classifier(folder: Path, tmp_path: Path) -> None:
    cfg = TokenizerConfig(path=str(folder / "bpe.json"), labels=True)
    made = Tokenizer.train(cfg, ParallelText(["a", "b"], ["good", "bad"]))
    assert made.labels == ["bad", "good"]
    made.save(tmp_path)
    assert Tokenizer.load(cfg, tmp_path).encode_tgt(["good"]) == made.encode_tgt(["good"])


def test_a_shortlist_has_the_bytes(folder: Path) -> None:
    made = ready(folder / "byte_level.json")
    chunks = [ParallelText(LINES[:2], LINES[2:])]
    always = build_shortlist(chunks, made, translations=2, frequent=0).always
    assert len(always) == EOS_ID + 1 + 256


def test_the_vector_of_a_piece_begins_from_the_pieces_of_its_text(folder: Path) -> None:
    old, new = ready(folder / "bpe.json"), ready(folder / "words.json")
    found = origins(old.tgt_model, new.tgt_model)
    assert found[: EOS_ID + 1] == [PAD_ID, UNK_ID, BOS_ID, EOS_ID]
    spelt = new.tgt_spellings(range(new.tgt_vocab_size)).index("▁bushes.")
    parts = found[spelt]
    assert isinstance(parts, list)
    assert old.decode(parts) == "bushes."
    trained = Tokenizer.train(TokenizerConfig(TokenizerKind.char, vocab_size=60), ParallelText(LINES, LINES))
    letter = trained.tgt_spellings(range(trained.tgt_vocab_size)).index("ä")
    assert origins(old.tgt_model, trained.tgt_model)[letter] == old.tgt_spellings(range(120)).index("ä")
    with pytest.raises(UserError, match=r"^init\.vocabulary=extend needs a SentencePiece model, but"):
        extended(old, ParallelText(LINES, LINES), 10)


def test_what_does_not_come_back_from_pieces_is_told(folder: Path) -> None:
    fine = list(ready_remarks(ready(folder / "byte_level.json"), LINES))
    assert fine == [f"tokenizer.path={folder}/byte_level.json: 376 pieces, with those of nmt"]
    _, warning = ready_remarks(ready(folder / "words.json"), ["Ein Mann", "Ein  Mann"])
    assert warning == (
        "warning: 1 of 2 targets are not the same when their pieces are put together again, and so cannot be "
        "written by the model: 'Ein  Mann' becomes 'Ein Mann'"
    )


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"kind": TokenizerKind.word}, "tokenizer.kind=word is for a tokenizer that is trained, but that of"),
        ({"byte_fallback": True}, "tokenizer.byte_fallback=true is for a tokenizer that is trained"),
        ({"character_coverage": 0.99}, "tokenizer.character_coverage=0.99 is for a tokenizer that is"),
        ({"tgt_path": "b.json"}, "tokenizer.tgt_path=b.json needs tokenizer.path, of the source side, and"),
    ],
)
def test_keys_of_training_are_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(UserError) as caught:
        TokenizerConfig(path="a.json", **fields)
    assert str(caught.value).startswith(error)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (
            {"sampling_alpha": 0.1},
            "tokenizer.sampling_alpha=0.1 needs a SentencePiece model, but tok",
        ),
        ({"case": Case.markup}, "tokenizer.case=markup needs a SentencePiece model, but tokenizer.path="),
    ],
)
def test_what_needs_sentencepiece_is_told(fields: dict[str, Any], error: str, folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        ready(folder / "bpe.json", **fields)
    assert str(caught.value).startswith(error)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "cannot be read: No such file or directory"),
        ("ä".encode("latin-1"), "is neither a SentencePiece model nor a tokenizer.json of the library"),
        ("[]", "is neither a SentencePiece model nor a tokenizer.json of the library tokenizers"),
        ('{"model": {"type": "Bytes"}, "added_tokens": []}', "has a model of the type Bytes, but usable are"),
        (
            '{"model": {"type": "BPE", "end_of_word_suffix": "</w>"}}',
            "has tokens that tell where words end (</w>), but they must tell where words begin",
        ),
        (
            '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": [], "decoder": 7}',
            "is not a tokenizer.json that tokenizers ",
        ),
    ],
    ids=["missing", "bytes", "list", "type", "ends", "library"],
)
def test_a_file_that_is_none_is_told(content: str | bytes | None, error: str, tmp_path: Path) -> None:
    path = tmp_path / "my.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        ready_models(TokenizerConfig(path=str(path)))
    assert str(caught.value).startswith(f"tokenizer.path={path} {error}")


def test_a_file_without_our_ids_is_no_model_of_a_run(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^has the tokens <unk> <pad> </s> <2de> first, but they must be"):
        piece_model((folder / "bpe.json").read_bytes())


def test_a_home_directory_that_nobody_has_is_a_missing_file() -> None:
    with pytest.raises(UserError, match=r"^tokenizer\.path=~no-such-user/a\.json cannot be read: No"):
        ready_models(TokenizerConfig(path="~no-such-user/a.json"))


def test_white_space_around_what_is_asked_for_is_no_text(folder: Path) -> None:
    """A byte-level tokenizer has a token for a space at the end."""
    made = ready(folder / "byte_level.json")
    wishes, (ids,) = Wishes(made), made.encode_tgt(["Ein Hund"])
    finished = wishes.of(Request("", "Ein Hund "))
    assert finished.prefix == ids[:-1]
    assert len(finished.rest) == 1
    for key in ("must", "avoid"):
        spaced, plain = (wishes.of(Request("", **{key: [text]})) for text in (" Hund ", "Hund"))  # type: ignore[arg-type]
        assert getattr(spaced, key) == getattr(plain, key) != []
