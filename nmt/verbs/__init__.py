"""Verbs: one file each, and the table of them.

Knows all components, but only wires them: gives each its part of the config. The table imports no verb, so
that `nmt --help` answers at once. A new verb is a row here, its module and configs/NAME.yaml. The modules in
import order:

    translate_file      Translate a large file with several workers, block by block.
    train               Train a model, or resume its training, and score it.
    evaluate            Score a trained model.
    translate           Translate standard input, or a large file.
    generate            Continue a text.
    attention           Show what a model attends to.
"""

from nmt.config.verb import Verb

_ROWS = (
    Verb(
        name="train",
        summary="train a model and score it; the same command again continues or reports",
        config="nmt.verbs.train.TrainConfig",
        groups=(
            "data",
            "model",
            "tokenizer",
            "optimizer",
            "schedule",
            "objective",
            "trainer",
            "decoding",
            "experiment",
        ),
        examples=(
            "nmt train                                      # the bundled demo",
            "nmt train experiment=multi30k_en_de            # a recipe",
            "nmt train data=multi30k model=transformer_base schedule.warmup_steps=2000 run=outputs/mine",
            "nmt train -m model.num_heads=2,4 schedule.factor=0.5,1.0",
        ),
        opens_run=False,
        shared=True,
    ),
    Verb(
        name="evaluate",
        summary="score a trained model: its recorded score again, or on other data",
        config="nmt.verbs.evaluate.EvaluateConfig",
        groups=("data", "decoding"),
        examples=(
            "nmt evaluate run=outputs/mine                  # the recorded score again",
            "nmt evaluate run=outputs/mine decoding.beam_size=8 data.scored_split=validation",
            "nmt evaluate run=outputs/mine checkpoint=best data=wmt16",
        ),
        shared=True,
    ),
    Verb(
        name="translate",
        summary="translate standard input to standard output line by line, or a large file",
        config="nmt.verbs.translate.TranslateConfig",
        groups=("decoding",),
        examples=(
            "nmt translate run=outputs/mine < src.txt > hyp.txt",
            "nmt translate run=outputs/mine decoding=greedy",
            "nmt translate run=[outputs/mine,outputs/other] < src.txt     # an ensemble",
            "nmt translate run=outputs/mine input=src.txt output=hyp.txt  # a large file: several workers",
        ),
        reads_input=True,
    ),
    Verb(
        name="generate",
        summary="continue a text with a trained language model",
        config="nmt.verbs.generate.GenerateConfig",
        groups=("decoding",),
        examples=(
            "nmt generate run=outputs/mine prompt='Two men'",
            "nmt generate run=outputs/mine max_tokens=500 decoding.temperature=0.7 decoding.seed=2",
        ),
    ),
    Verb(
        name="attention",
        summary="show what a trained model attends to: a page, images and word alignments",
        config="nmt.verbs.attention.AttentionVerbConfig",
        groups=("decoding",),
        examples=(
            "nmt attention run=outputs/mine < src.txt       # attention.html, images and alignments",
            "paste src.txt tgt.txt | nmt attention run=outputs/mine views=[hard] layer=5 output=aligned",
        ),
        reads_input=True,
    ),
)
VERBS = {row.name: row for row in _ROWS}
