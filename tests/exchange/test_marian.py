"""Models of Marian as `transformers` saves them: the same ids, logits and translations here as there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file

import nmt
from nmt.cli import main
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.sources import load
from nmt.data.special_ids import BOS_ID, UNK_ID
from nmt.data.tokens.adaptation import extended, origins
from nmt.decoding import BeamConfig
from nmt.errors import UserError
from nmt.exchange.importing import import_folder
from nmt.runs.agreement import pieces_of
from tests.exchange.agreement import require_agreement

transformers = pytest.importorskip("transformers", reason="the extra `export` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended")  # of sacremoses

UNLISTED = 9
"""Pieces of each SentencePiece model that the vocabulary lacks."""


@pytest.fixture(scope="module")
def text() -> ParallelText:
    pairs = load(DemoData(), Split.test)
    return ParallelText(pairs.src[:300], pairs.tgt[:300])


def train_spm(folder: Path, name: str, lines: Sequence[str], size: int) -> list[str]:
    """Train a model with the ids of OPUS-MT and return its pieces, without the special ones."""
    prefix = str(folder / name)
    options: dict[str, Any] = {"model_prefix": prefix, "vocab_size": size, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), **options)
    (folder / f"{name}.model").rename(folder / f"{name}.spm")
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
    return [model.id_to_piece(i) for i in range(3, model.get_piece_size())]


def write_marian(
    folder: Path, text: ParallelText, *, shared: bool, tied: bool = True, codes: Sequence[str] = ()
) -> Path:
    """Write a random model with vocabularies of `text`, as `save_pretrained` does."""
    folder.mkdir()
    src = train_spm(folder, "source", text.src, 160)[:-UNLISTED]
    tgt = train_spm(folder, "target", text.tgt, 200)[:-UNLISTED]
    sides = [list(dict.fromkeys([*tgt, *src]))] if shared else [src, tgt]
    names = ["vocab.json"] if shared else ["vocab.json", "target_vocab.json"]
    sizes = []
    for name, pieces in zip(names, sides, strict=True):
        vocabulary = ["</s>", "<unk>", *pieces, *codes, "<pad>"]
        (folder / name).write_text(json.dumps({piece: i for i, piece in enumerate(vocabulary)}))
        sizes.append(len(vocabulary))
    pad = sizes[0] - 1
    cfg = transformers.MarianConfig(
        vocab_size=sizes[0],
        decoder_vocab_size=sizes[-1],
        share_encoder_decoder_embeddings=shared,
        tie_word_embeddings=tied,
        d_model=32,
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
        encoder_ffn_dim=48,
        decoder_ffn_dim=48 if shared else 40,
        encoder_attention_heads=4,
        decoder_attention_heads=4 if shared else 2,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        init_std=0.3,
    )
    torch.manual_seed(3)
    model = transformers.MarianMTModel(cfg)
    model.final_logits_bias.normal_()
    model.generation_config.num_beams = 4
    model.save_pretrained(folder)
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    target = None if shared else str(folder / "target_vocab.json")
    tokenizer = transformers.MarianTokenizer(*files, target_vocab_file=target, separate_vocabs=not shared)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("shared", "tied"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
def test_ids_logits_and_translations_are_those_of_transformers(
    tmp_path: Path, text: ParallelText, shared: bool, tied: bool
) -> None:
    codes = [">>fra<<", ">>nds<<"] if shared else []
    folder = write_marian(tmp_path / "opus", text, shared=shared, tied=tied, codes=codes)
    _, imported = import_folder(folder, tmp_path / "run", "en", ["de"])
    run = nmt.open_run(tmp_path / "run")
    theirs = transformers.MarianMTModel.from_pretrained(folder)
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    rows = torch.tensor(imported.tgt.rows)
    assert imported.tgt.num_added > 0
    lines = [*text.src[:30], *([">>nds<< A dog."] if shared else []), "An unknown Ω."]
    for line, target in zip(lines, text.tgt, strict=False):
        src, tgt = run.tokenizer.encode_src([line])[0], run.tokenizer.encode_tgt([target])[0]
        batch = tokenizer([line], text_target=[target], return_tensors="pt")
        if shared:
            assert rows[torch.tensor(src)].tolist() == batch.input_ids[0].tolist()
        require_agreement(run, imported, theirs, batch, src, tgt)


def test_unknown_characters_that_are_a_piece_of_the_target_together_stay_apart(
    tmp_path: Path, text: ParallelText
) -> None:
    """One of the differences in docs/importing.md."""
    pieces = ["中国", "中", "国"]
    folder = write_marian(tmp_path / "opus", text, shared=True, codes=pieces)
    _, imported = import_folder(folder, tmp_path / "run", "en", ["de"])
    whole, *parts = (json.loads((folder / "vocab.json").read_text())[piece] for piece in pieces)
    theirs = transformers.MarianTokenizer.from_pretrained(folder)(["A 中国 dog."]).input_ids[0]
    ours = [imported.tgt.rows[i] for i in imported.tokenizer.encode_src(["A 中国 dog."])[0]]
    place = theirs.index(whole)
    assert ours == [*theirs[:place], *parts, *theirs[place + 1 :]]


def test_a_target_language_that_has_a_piece_is_asked_for_by_its_tag(
    tmp_path: Path, text: ParallelText
) -> None:
    """So that a line needs no >>fra<< in front, unless the import names no such language."""
    folder = write_marian(tmp_path / "opus", text, shared=True, codes=[">>fra<<", ">>nds<<"])
    for name, targets in (("typed", ["de"]), ("one", ["fra"]), ("both", ["fra", "nds"])):
        _, imported = import_folder(folder, tmp_path / name, "en", targets)
        assert bool(imported.remarks) == (name == "typed")
    typed, one, both = (nmt.open_run(tmp_path / name) for name in ("typed", "one", "both"))
    lines = text.src[:5]
    french, saxon = ([f">>{code}<< {line}" for line in lines] for code in ("fra", "nds"))
    expected = [[found.text for found in typed.translate(asked)] for asked in (french, saxon)]
    assert [found.text for found in one.translate(lines)] == expected[0]
    assert [found.text for found in one.translate(saxon, tgt="fra")] != expected[1]
    assert UNK_ID not in one.tokenizer.encode_src(["<2fra> >>fra<< A dog."])[0][:3]  # a line as before
    for tgt, texts in zip(("fra", "nds"), expected, strict=True):
        assert [found.text for found in both.translate(lines, tgt=tgt)] == texts
    with pytest.raises(UserError, match="tgt=nl: the model cannot be asked for this language; it knows fra"):
        import_folder(folder, tmp_path / "other", "en", ["fra", "nl"])


def test_the_command_makes_a_run_that_translates_as_transformers_does(
    tmp_path: Path, text: ParallelText, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = write_marian(tmp_path / "opus", text, shared=True), tmp_path / "run"
    arguments = [f"folder={folder}", f"run={run}", "src=en", "tgt=de"]
    assert main(["import", *arguments]) == 0
    told = capsys.readouterr().out
    assert f"written     {run}" in told
    assert main(["import", *arguments]) == 2
    assert f"error: run={run} exists and is no empty directory; name a new one\n" in capsys.readouterr().err
    file = run / "config.yaml"
    assert main(["import", *arguments, f"run={file}"]) == 2
    assert f"error: run={file} exists and is no empty directory" in capsys.readouterr().err
    assert main(["import", *arguments, f"run={file}/run"]) == 2
    assert capsys.readouterr().err == f"error: cannot write {file}/run/tokenizer.src.model: Not a directory\n"
    opened = nmt.open_run(run)
    assert f"of {sum(one.numel() for one in opened.model.parameters()):,} parameters\n" in told
    assert isinstance(opened.cfg.decoding, BeamConfig)
    assert opened.cfg.decoding.beam_size == 4
    model = transformers.MarianMTModel.from_pretrained(folder)
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    lines = text.src[:10]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    pad = model.config.pad_token_id
    limits = {"max_new_tokens": 12, "num_beams": 1, "bad_words_ids": [[pad]], "forced_eos_token_id": None}
    generated = model.generate(**batch, **limits)
    expected = [row[1:].tolist() for row in generated]
    # EOS counts, too
    outputs = opened.translate(lines, beam_size=1, max_length_ratio=0.0, max_length_offset=13)
    found = [one.text for one in outputs]
    assert [text.split() for text in found] == [
        tokenizer.decode(ids, skip_special_tokens=True).split() for ids in expected
    ]


def test_the_corpus_of_an_imported_run_must_be_named(
    tmp_path: Path, text: ParallelText, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = write_marian(tmp_path / "opus", text, shared=True), tmp_path / "run"
    import_folder(folder, run, "en", ["de"])
    assert main(["evaluate", f"run={run}"]) == 2
    assert "data=none has no test pairs; name a corpus" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", '{"model_type": "t5"}', "model_type='t5'; those that can be imported are marian"),
        ("config.json", '{"nmt_version": "1"}', "is an export of nmt itself with format=safetensors, for"),
        ("config.json", '{"model_type": "marian"}', "d_model is missing"),
        ("config.json", "[1]", "it holds list where an object is expected"),
        ("config.json", '{"a":' * 9999 + "1" + "}" * 9999, "is nested more than 32 deep"),
        ("config.json", '{"model_type": ["marian"], "a": "\\ud800"}', "is damaged: .*surrogates not allowed"),
        ("config.json", '{"model_type": ["marian"]}', "those that can be imported are marian, m2m_100"),
        ("vocab.json", "{", "is damaged"),
        ("vocab.json", '{"a": 1}', "the vocabulary has no <unk>"),
        (
            "vocab.json",
            '{"<unk>": 1, "": 2}',
            "cannot hold the vocabulary of the model: .* must not be empty",
        ),
        ("vocab.json", '{"<unk>": 1, "a": -2}', "must hold the number of each piece"),
        ("source.spm", "x", "is not a readable SentencePiece model"),
        ("source.spm", "", "is not a readable SentencePiece model"),
        ("model.safetensors.index.json", '{"weight_map": [1]}', "has no weight_map, the file of each weight"),
        ("source.spm", None, "has no source.spm"),
        ("model.safetensors", "x", "is damaged"),
        ("model.safetensors", None, "has neither model.safetensors nor pytorch_model.bin"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "b.bin"}}', "that are not .safetensors files"),
    ],
)
def test_a_folder_that_cannot_be_imported_is_refused(
    marian_folder: Path, tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    for file in marian_folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / name).unlink(missing_ok=True)
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        import_folder(tmp_path, tmp_path / "run", "en", ["de"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("eos_token_id", -1, "does not describe a model: eos_token_id is -1"),
        ("encoder_layers", 1, "encoder_layers is 1, but the weights have more layers"),
        ("tie_word_embeddings", "no", "tie_word_embeddings is 'no'"),
        ("tie_word_embeddings", False, r"the weights have none of lm_head\.weight"),
        ("d_model", 1 << 40, "the weights of 4 layers with model.d_model=1099511627776 need at least"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    marian_folder: Path, tmp_path: Path, key: str, value: object, message: str
) -> None:
    for file in marian_folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    settings = json.loads((marian_folder / "config.json").read_text()) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=message):
        import_folder(tmp_path, tmp_path / "run", "en", ["de"])


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("encoder.layers.0.self_attn.v_proj.bias", (1, 32), r"\(1, 32\), of 2 axes in place of 1"),
        (
            "decoder.layers.1.encoder_attn.v_proj.weight",
            (32, 32, 1),
            r"\(32, 32, 1\), of 3 axes in place of 2",
        ),
        ("decoder.layers.1.fc2.weight", (48, 32), r"\(48, 32\), which does not fit d_model=32"),
    ],
)
def test_a_weight_of_another_shape_is_named(
    marian_folder: Path, tmp_path: Path, name: str, shape: tuple[int, ...], message: str
) -> None:
    for file in marian_folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).symlink_to(file)
    tensors = load_file(marian_folder / "model.safetensors")
    tensors[f"model.{name}"] = tensors[f"model.{name}"].reshape(shape)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=rf"^model\.{re.escape(name)} has the shape {message}"):
        import_folder(tmp_path, tmp_path / "run", "en", ["de"])


def test_an_imported_model_goes_back_to_transformers(tmp_path: Path, text: ParallelText) -> None:
    """The bias on the logits and the codes of languages go along; the card says where the model is from."""
    import_folder(
        write_marian(tmp_path / "opus", text, shared=True, codes=[">>fra<<", ">>nds<<"]),
        tmp_path / "run",
        "en",
        ["de"],
    )
    folder, run = tmp_path / "hf", nmt.open_run(tmp_path / "run")
    assert main(["export", f"run={tmp_path / 'run'}", "format=huggingface", f"output={folder}"]) == 0
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for line in (">>nds<< A dog.", text.src[0]):
        src = run.tokenizer.encode_src([line])[0]
        batch = tokenizer([line], return_tensors="pt")
        assert batch.input_ids[0].tolist() == src
        with torch.no_grad():
            expected = theirs(**batch, decoder_input_ids=torch.tensor([[BOS_ID, 9, 8]])).logits
            ids = torch.tensor([src])
            hidden = run.model(ids, torch.ones_like(ids).bool(), torch.tensor([[BOS_ID, 9, 8]]))
            torch.testing.assert_close(run.model.project(hidden), expected, atol=1e-4, rtol=0)
    small = tmp_path / "small"
    assert main(["export", f"run={tmp_path / 'run'}", "format=nmt", f"output={small}"]) == 0
    assert main(["export", f"run={small}", "format=safetensors", f"output={tmp_path / 'weights'}"]) == 0
    for place in (folder, small, tmp_path / "weights"):
        card = (place / "README.md").read_text(encoding="utf-8")
        assert "trained by another program and imported into `nmt`" in card


def test_one_vocabulary_of_two_segmentations_is_extended(
    marian_folder: Path, tmp_path: Path, text: ParallelText
) -> None:
    """Both sides keep their own segmentation, and their new pieces have one numbering."""
    _, imported = import_folder(marian_folder, tmp_path / "run", "en", ["de"])
    old, new = imported.tokenizer, extended(imported.tokenizer, text, 80)
    size = old.src_vocab_size
    assert size < new.src_vocab_size == new.tgt_vocab_size <= size + 80
    assert pieces_of(new.src_model) == pieces_of(new.tgt_model)
    assert pieces_of(new.src_model)[:size] == pieces_of(old.src_model)
    for lines, encode in ((text.src, "encode_src"), (text.tgt, "encode_tgt")):
        before, after = (sum(map(len, getattr(one, encode)(lines))) for one in (old, new))
        assert after < before
    begun = origins(old.src_model, new.src_model)
    assert begun == origins(old.tgt_model, new.tgt_model)
    assert begun[:size] == [*range(size)]


def test_pickled_weights_are_read_as_data_also_in_parts(marian_folder: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "parts", "damaged")]
    for folder in folders:
        folder.mkdir()
        for file in marian_folder.iterdir():
            if file.suffix != ".safetensors":
                (folder / file.name).symlink_to(file)
    tensors = load_file(marian_folder / "model.safetensors")
    torch.save(tensors, folders[0] / "pytorch_model.bin")
    files = {name: f"pytorch_model-{number % 2}.bin" for number, name in enumerate(tensors)}
    for part in set(files.values()):
        own = {name: tensor for name, tensor in tensors.items() if files[name] == part}
        torch.save(own, folders[1] / part, _use_new_zipfile_serialization=False)
    (folders[1] / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    import_folder(marian_folder, tmp_path / "run", "en", ["de"])
    for number, folder in enumerate(folders[:2]):
        import_folder(folder, tmp_path / f"run{number}", "en", ["de"])
        found, known = (nmt.open_run(tmp_path / run).model.state_dict() for run in (f"run{number}", "run"))
        assert all(torch.equal(found[name], known[name]) for name in known)
    (folders[2] / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is damaged: "):
        import_folder(folders[2], tmp_path / "other", "en", ["de"])


@pytest.fixture(scope="module")
def marian_folder(tmp_path_factory: pytest.TempPathFactory, text: ParallelText) -> Path:
    return write_marian(tmp_path_factory.mktemp("marian") / "opus", text, shared=True)
