"""Models of M2M-100 and NLLB-200 as `transformers` saves them: the same ids and logits here as there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import sentencepiece
import torch

import nmt
from nmt.cli import main
from nmt.data.parallel_text import Split
from nmt.data.reading.bundled_data import DemoData
from nmt.data.reading.sources import load
from nmt.decoding.configs import DecodingConfig, LengthPenalty, MBRConfig, SamplingConfig
from nmt.errors import UserError
from nmt.exchange.foreign import ForeignFolder
from nmt.exchange.imported import Imported
from nmt.exchange.importing import import_folder
from nmt.exchange.m2m100 import _vocabulary
from nmt.translation.requests import Request
from tests.exchange.agreement import require_agreement

transformers = pytest.importorskip("transformers", reason="the extra `export` is not installed")

SPM = "sentencepiece.bpe.model"
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_m2m(tmp_path_factory.mktemp("m2m") / "model")


def write_m2m(folder: Path, *, tied: bool = True, first: Sequence[str] = SPECIAL) -> Path:
    """Write a random model with a vocabulary of the demo, as `save_pretrained` does."""
    text = load(DemoData(), Split.test)
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*text.src[:300], *text.tgt[:300]]),
        model_prefix=str(folder / SPM.removesuffix(".model")),
        vocab_size=200,
        model_type="bpe",
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / SPM))
    names = list(first)
    names += [pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size())]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    tokenizer = transformers.M2M100Tokenizer(str(folder / "vocab.json"), str(folder / SPM))
    tokenizer.save_pretrained(folder)
    cfg = transformers.M2M100Config(
        vocab_size=len(names) + 100 + 8,
        d_model=32,
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
        init_std=0.2,
        tie_word_embeddings=tied,
        pad_token_id=names.index("<pad>"),
        **dict.fromkeys(("eos_token_id", "decoder_start_token_id"), names.index("</s>")),
        bos_token_id=names.index("<s>"),
    )
    torch.manual_seed(3)
    transformers.M2M100ForConditionalGeneration(cfg).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("as_on_the_hub", [False, True])
def test_ids_and_logits_are_those_of_transformers(folder: Path, tmp_path: Path, as_on_the_hub: bool) -> None:
    source = folder
    if as_on_the_hub:  # where another file names the languages, by their order
        source = tmp_path / "hub"
        source.mkdir()
        for name in ("config.json", "model.safetensors", "vocab.json", SPM):
            (source / name).symlink_to(folder / name)
        codes = transformers.models.m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
        names = {"additional_special_tokens": [f"__{code}__" for code in codes]}
        (source / "special_tokens_map.json").write_text(json.dumps(names))
    _, imported = import_folder(source, tmp_path / "run", "en", ["de"])
    require_the_same(folder, imported, tmp_path / "run")


def test_an_output_layer_of_its_own_and_other_special_ids_are_taken(tmp_path: Path) -> None:
    """Positions are counted from the number of the padding on."""
    folder = write_m2m(tmp_path / "model", tied=False, first=["<s>", "</s>", "<unk>", "<pad>"])
    _, imported = import_folder(folder, tmp_path / "run", "en", ["de"])
    require_the_same(folder, imported, tmp_path / "run")


LISTED = {"additional_special_tokens": ["<sep>", {"content": "__af__"}, "__am__"]}
NUMBERED = {"added_tokens_decoder": {"7": {"content": "__am__"}, "8": {"content": "<sep>"}}}


@pytest.mark.parametrize(
    ("special", "settings", "rows"),
    [
        (LISTED, {}, {"__af__": 2, "__am__": 3}),
        (LISTED, NUMBERED, {"__am__": 7}),
        ({"additional_special_tokens": ["<sep>"]}, {"language_codes": "m2m100"}, {"__af__": 2, "__am__": 3}),
        ({}, {"added_tokens_decoder": {"3": {"content": "<unk>"}}}, {"__af__": 2, "__am__": 3}),
        (LISTED, {"added_tokens_decoder": {"a": {"content": "__am__"}}}, "has no tokens in added_tokens_dec"),
        (LISTED, {"added_tokens_decoder": {"-1": {"content": "__am__"}}}, "must hold the number of each"),
        ({"additional_special_tokens": "__am__"}, {}, "must hold a list of additional_special_tokens"),
    ],
)
def test_rows_of_languages_are_those_of_the_files(
    tmp_path: Path, special: object, settings: object, rows: dict[str, int] | str
) -> None:
    for name, content in {
        "config": {},
        "vocab": {"a": 0, "b": 1},
        "special_tokens_map": special,
        "tokenizer_config": settings,
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    if isinstance(rows, str):
        with pytest.raises(UserError, match=rows):
            _vocabulary(ForeignFolder(tmp_path))
        return
    _, found = _vocabulary(ForeignFolder(tmp_path))
    assert {name: row for name, row in found.items() if name in ("__af__", "__am__")} == rows
    assert all(name.startswith("__") for name in found)


def test_rows_of_unknown_languages_are_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        if file.name not in ("tokenizer_config.json", "special_tokens_map.json"):
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "tokenizer_config.json").write_text('{"language_codes": "wmt21"}')
    with pytest.raises(UserError, match="codes='wmt21', whose rows are known from special_tokens_map"):
        import_folder(tmp_path, tmp_path / "run", "en", ["de"])


def require_the_same(folder: Path, imported: Imported, directory: Path) -> None:
    """Compare the run of an imported model with what `transformers` makes of the folder."""
    run, rows = nmt.open_run(directory), torch.tensor(imported.tgt.rows)
    theirs = transformers.M2M100ForConditionalGeneration.from_pretrained(folder)
    tokenizer = transformers.M2M100Tokenizer.from_pretrained(folder, src_lang="en", tgt_lang="de")
    text = load(DemoData(), Split.test)
    for line, target in zip([*text.src[:20], "Ω"], text.tgt, strict=False):
        src, tgt = run.tokenizer.encode_src([line])[0], run.tokenizer.encode_tgt([target])[0]
        batch = tokenizer([line], text_target=[target], return_tensors="pt")
        assert rows[torch.tensor(src)].tolist() == batch.input_ids[0].tolist()
        require_agreement(run, imported, theirs, batch, src, tgt)
        assert run.tokenizer.decode(tgt[:-1]) == target


def test_the_vocabulary_of_nllb_is_that_of_its_tokenizer_json(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "nllb"
    source.mkdir()
    for name in ("config.json", "model.safetensors", SPM):
        (source / name).symlink_to(folder / name)
    pieces: dict[str, int] = json.loads((folder / "vocab.json").read_text())
    added = [{"id": pieces[name], "content": name} for name in SPECIAL]
    languages = {"ace_Arab": len(pieces), "deu_Latn": len(pieces) + 1, "eng_Latn": len(pieces) + 2}
    added += [{"id": row, "content": name} for name, row in languages.items()]
    added.append({"id": len(pieces) + 3, "content": "<mask>"})
    tokenizer = {"added_tokens": added, "model": {"type": "BPE", "vocab": pieces}}
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    _, imported = import_folder(source, tmp_path / "run", "eng_Latn", ["deu_Latn"])
    rows = imported.tgt.rows
    src, tgt = imported.tokenizer.encode_src(["A dog."])[0], imported.tokenizer.encode_tgt(["Ein Hund."])[0]
    assert [rows[src[0]], rows[src[-1]]] == [languages["eng_Latn"], pieces["</s>"]]
    assert [rows[tgt[0]], rows[tgt[-1]]] == [languages["deu_Latn"], pieces["</s>"]]
    segmented = sentencepiece.SentencePieceProcessor(model_file=str(folder / SPM)).encode(
        "A dog.", out_type=str
    )
    assert [rows[i] for i in src[1:-1]] == [pieces[piece] for piece in segmented]


def test_translations_are_those_of_transformers_and_begin_with_the_language(
    folder: Path, tmp_path: Path
) -> None:
    _, imported = import_folder(folder, tmp_path / "run", "en", ["de"])
    run, lines = nmt.open_run(tmp_path / "run"), load(DemoData(), Split.test).src[:10]
    theirs = transformers.M2M100ForConditionalGeneration.from_pretrained(folder)
    tokenizer = transformers.M2M100Tokenizer.from_pretrained(folder, src_lang="en", tgt_lang="de")
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    start = tokenizer.get_lang_id("de")
    with torch.no_grad():
        ids = theirs.generate(**batch, forced_bos_token_id=start, max_new_tokens=12, num_beams=1)
    expected = [[token for token in row[1:].tolist() if token not in (1, 2)] for row in ids]
    found = list(run.translate(lines, beam_size=1, max_length_ratio=0.0, max_length_offset=13))
    assert [[imported.tgt.rows[i] for i in one.ids[:12]] for one in found] == expected
    assert {one.ids[0] for one in found} == set(run.tokenizer.tgt_start(""))
    for one in run.translate(lines[:3], beam_size=4, length_penalty=LengthPenalty.none, token_scores=True):
        assert one.score == pytest.approx(sum(one.log_probs), abs=1e-3)  # of a language that is given
    begun = run.translate(Request("A dog.", prefix="Ein "), beam_size=3)
    assert next(begun).text.startswith("Ein ")
    assert next(run.translate(["  "])).text == ""
    (scored,) = run.score([("A dog.", "Ein Hund.")])
    assert len(scored.ids) == len(run.tokenizer.encode_tgt(["Ein Hund."])[0]) - 1


def test_a_run_of_several_languages_is_asked_for_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also line by line, to be scored on another corpus, and as the start of a training."""
    monkeypatch.chdir(tmp_path)
    assert main(["import", f"folder={folder}", "src=en", "tgt=[de,fr,__es__]", "run=both"]) == 0
    assert "nmt translate run=both tgt=de < en.txt" in capsys.readouterr().out
    both, lines = nmt.open_run("both"), load(DemoData(), Split.test).src[:6]
    for tgt in ("de", "fr"):
        import_folder(folder, tmp_path / tgt, "en", [tgt])
        alone = nmt.open_run(tmp_path / tgt)
        asked = list(both.translate(lines, tgt=tgt, beam_size=2))
        assert [one.text for one in asked] == [one.text for one in alone.translate(lines, beam_size=2)]
        pair = (lines[0], "Ein Hund.")
        assert both.score([pair], tgt=tgt)[0].log_probs == pytest.approx(alone.score([pair])[0].log_probs)
        begins = both.tokenizer.tgt_start(f"<2{tgt}> A dog."), alone.tokenizer.tgt_start("A dog.")
        biases = [run.model.output.bias[ids] for run, ids in zip((both, alone), begins, strict=True)]
        assert biases[0].tolist() == biases[1].tolist() == [0.0]  # whose loss counts
        mixed: list[str | Request] = [Request(lines[0], tgt="fr"), Request(lines[0], tgt="de"), lines[0]]
        found = [one.text for one in both.translate(mixed, tgt=tgt, beam_size=2)]
        assert found[["fr", "de"].index(tgt)] == found[2] == asked[0].text
    with pytest.raises(UserError, match=r"into de, fr, __es__; say which one with tgt=\.\.\."):
        list(both.translate(lines))
    assert main(["evaluate", "run=both", "data=demo", "decoding=greedy", "decoding.max_length_ratio=0"]) == 0
    tags = ["data=mixture", "data.target_tags=true"]
    tags.append("data.corpora={a: {name: toy, src: en, tgt: fr}}")
    short = ["trainer.max_steps=1", "decoding=greedy", "decoding.max_length_ratio=0"]
    capsys.readouterr()
    assert main(["train", "init=both", "run=more", *tags, *short, "tracking.sinks=[]"]) == 0
    assert "warning" not in capsys.readouterr().err
    starts = [run.tokenizer.tgt_start("<2fr> A dog.") for run in (nmt.open_run("more"), both)]
    assert starts[0] == starts[1] != []


@pytest.mark.parametrize("decoding", [SamplingConfig(n_best=3), MBRConfig(num_samples=4, beam_size=3)])
def test_every_strategy_begins_with_the_language(
    folder: Path, tmp_path: Path, decoding: DecodingConfig
) -> None:
    import_folder(folder, tmp_path / "run", "en", ["de"])
    run = nmt.open_run(tmp_path / "run")
    found = list(run.translate(["A dog.", "A cat."], decoding))
    assert {one.ids[0] for best in found for one in (best, *best.alternatives)} == set(
        run.tokenizer.tgt_start("")
    )


def test_a_language_that_the_model_does_not_know_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["import", f"folder={folder}", f"run={tmp_path / 'run'}", "src=en"]
    for given, told in (("[de,de]", "de is named twice"), ("[de,en]", "en is named twice"), ("[]", "is []")):
        assert main([*command, f"tgt={given}"]) == 2
        assert told in capsys.readouterr().err
    with pytest.raises(UserError, match="tgt=xx: the model does not know it; it knows af, am"):
        import_folder(folder, tmp_path / "run", "en", ["xx"])
