"""Neural machine translation, from sentence pairs to BLEU.

The modules in import order. Each imports only from those above it; a test reads this list and checks that:

    errors                What a user can do wrong, and the exit code that says so.
    files                 Small files, written whole.
    cache                 What is kept between runs: entries that appear whole and are checked when opened.
    kernels               What is faster in C++, built at first use, and whether it can be.
    runtime               Device, threads, seeds and mixed precision.
    distributed           Several processes that work together, and end together.
    fused                 Steps of training in one pass over memory: the kernels, or plain torch.
    layers                Blocks that models share: dropout, feed-forward, norms, residual.
    low_precision         A copy of a model for search that multiplies 16-bit numbers.
    positions             How a model tells positions apart.
    relative_positions    How self-attention is told how far a key is from a query.
    attention             Multi-head attention, and how to see its weights.
    loss                  Summed label-smoothed negative log-likelihood.
    tracking              One `log(step, values)` to the progress display, metrics.jsonl and TensorBoard.
    demo/forms            The kinds of words of the demo corpus, and how each inflects in both languages.
    demo/lexicon          The words themselves.
    demo/grammar          Sentences: one abstract form each, said in English and in German.
    demo/phrases          Phrases that make sense together, drawn at random.
    demo/toy              Ten sentence pairs, to be learnt by heart.
    demo                  The demo corpus: the same sentence pairs and splits on every machine.
    pairs                 Sentence pairs, and what every data config states.
    lines                 The lines of text files, plain or compressed, block by block.
    textfiles             Pairs from files: parallel plain text, TSV and JSONL.
    hub                   Pairs from Hugging Face datasets: on the hub, or in a folder of the same layout.
    mixture               Several corpora at once: their shares, and the tags of target languages.
    corpus                One split from whichever source the config names; filters for training pairs.
    preparation           A line before it is tokenised: lower-cased, without punctuation.
    tokenizer_training    Train SentencePiece, deterministically; the config of a tokenizer.
    tokenizer             Text to ids and ids to text; sole owner of the special ids.
    encoded               The ids of sentences: flat arrays in memory, or files read as batches need them.
    streaming             Training pairs that are read while training goes on.
    training_text         The training split as a stream, what is known about it, and its tokenizer.
    encoding              From text to ids, chunk by chunk, cached by content.
    muon                  Momentum of matrices, orthogonalised, beside Adam for everything else.
    optimizer             Optimizers, and learning-rate schedules as pure functions of the step.
    checkpoint            Write atomically, verify, read, keep and average tensors.
    models/base           The contract that every model fulfils.
    models/cache          Keys and values in search: what a step appends to, and looks back at.
    models/vocabulary     Embeddings and output layer, and which of them are one matrix.
    models/stack          Residual sublayers and layers that Transformers are stacked from.
    models/transformer    The encoder-decoder Transformer.
    models/rnn_attention  Attention of a recurrent decoder: the additive, dot and general scores.
    models/recurrence     Layers of recurrent cells, over a whole sequence or one position at a time.
    models/rnn            The recurrent encoder-decoder, with and without attention.
    models/convolutional  The convolutional model: gated convolutions, attention in every decoder layer.
    models/decoder_only   The decoder-only Transformer: one stack over source and target, or over a text.
    models                The table of model families.
    batching              Encoded pairs to token-budget batches; the plan of an epoch is a pure function.
    hypotheses            What every way of finding translations has in common.
    continuations         The best continuations of a sentence by one token.
    beam_search           Greedy and beam search over the model contract.
    graph_search          Beam search on a GPU whose steps are recorded and replayed.
    sampling              Translations and continuations drawn from the distribution of a model.
    decoding              The table of strategies.
    translate             Lines in, translations out, order kept.
    alignment             From attention weights over pieces to alignments of words.
    attention_maps        What a model attends to, sentence by sentence: tokens and weights.
    heatmap               Heat maps of attention weights as images.
    attention_page        Attention weights as one HTML page.
    attention_views       What `nmt attention` writes: page, images, soft and hard alignments.
    evaluate              Loss, and sacreBLEU metrics with their signatures, on one split.
    learner               Forward pass and loss as one module; DDP and FSDP2.
    flops                 Floating-point operations of training, and the utilisation of a GPU.
    progress              How far a training has come, and what its updates measure.
    trainer               The update; when to validate, save and stop.
    config_errors         What Hydra and OmegaConf raise, as one readable sentence.
    config                The root configs of the verbs, and their checks.
    config_files          The config.yaml of a run.
    tasks                 What a model learns: the code of translation and that of language modelling.
    rundir                A run directory: its files, its lock, and which config it belongs to.
    run                   Opening a finished run; the wiring of the verbs that start from one.
    translation_job       A large file to translate: its blocks, its finished parts, the output.
    file_translation      Workers that translate a large file.
    training              The wiring of train.
    config_help           `nmt VERB --help`: every key with its default and its docstring.
    overrides             The arguments of a verb, and what is refused before anything is composed.
    compose               From the command line of one verb to its configs, through Hydra.
    cli                   `nmt VERB [overrides]`, errors and exit codes.
    __main__              `python -m nmt`.

Shape letters: B sentences, S source length, T target length, D d_model, H heads, K beams, V vocabulary,
N = B * K hypotheses (the beams of a sentence are adjacent: row b * K + k). Batch first everywhere. Masks are
boolean, and True means "may be attended". A step is one update of the weights, counted from 1.

Importing this package costs nothing: the names below load their module, and with it torch, at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the names below, for type checkers
    from nmt.checkpoint import CheckpointStore as CheckpointStore
    from nmt.decoding import DecodingConfig as DecodingConfig
    from nmt.errors import NmtError as NmtError
    from nmt.errors import UserError as UserError
    from nmt.models import build_model as build_model
    from nmt.models.base import TranslationModel as TranslationModel
    from nmt.pairs import ParallelText as ParallelText
    from nmt.run import open_run as open_run
    from nmt.tokenizer import Tokenizer as Tokenizer

__version__ = "0.1.0"

_HOME = {
    "CheckpointStore": "checkpoint",
    "DecodingConfig": "decoding",
    "NmtError": "errors",
    "ParallelText": "pairs",
    "Tokenizer": "tokenizer",
    "TranslationModel": "models.base",
    "UserError": "errors",
    "build_model": "models",
    "open_run": "run",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    """Import a public name from its module when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
