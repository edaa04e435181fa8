"""Verbs: one file each, and the table of them.

Knows all components, but only wires them: gives each its part of the config. The table imports no verb, so
that `nmt --help` answers at once. A new verb is a row here, its module and configs/NAME.yaml. The modules in
import order:

    configs             The root configs of verbs; no torch.
    file_job            The work of a model on lines: a stream, or a large file with several workers.
    train               Train a model, or resume its training, and score it.
    evaluate            Score a trained model.
    translate           Translate standard input, or a large file.
    score               Score given translations.
    rerank              Choose among the translations of a run by the scores of other runs.
    distil              Train a student on the translations of teachers.
    generate            Continue a text.
    attention           Show what a model attends to.
"""

from nmt.config.verb import Verb

_TRAIN_GROUPS = (
    "data",
    "model",
    "tokenizer",
    "optimizer",
    "schedule",
    "objective",
    "trainer",
    "decoding",
    "experiment",
)
_ROWS = (
    Verb(
        name="train",
        summary="train a model and score it; the same command again continues or reports",
        config="nmt.config.roots.TrainConfig",
        code="nmt.verbs.train.run",
        groups=_TRAIN_GROUPS,
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
        name="distil",
        summary="translate the training pairs with trained models, and train a student on the result",
        config="nmt.verbs.configs.DistilConfig",
        code="nmt.verbs.distil.run",
        groups=_TRAIN_GROUPS,
        examples=(
            "nmt distil teacher=[outputs/a,outputs/b] model=transformer_tiny run=outputs/student",
            "nmt distil teacher=outputs/a distil.decoding=beam distil.decoding.n_best=4 distil.min_chrf=30",
            "nmt distil teacher=[outputs/en_de,outputs/de_en] distil.combine=each run=outputs/diverse",
            "nmt distil teacher=outputs/de_en data=multi30k distil.tgt_text=[news.de] run=outputs/more",
        ),
        opens_run=False,
        data_from="teacher",
        mounts={"distil.decoding": "decoding"},
        shared=True,
    ),
    Verb(
        name="evaluate",
        summary="score a trained model: its recorded score again, or on other data",
        config="nmt.verbs.configs.EvaluateConfig",
        code="nmt.verbs.evaluate.run",
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
        config="nmt.config.roots.TranslateConfig",
        code="nmt.verbs.translate.run",
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
        name="score",
        summary="log probabilities of given translations: SOURCE TAB TARGET in, a score out, line by line",
        config="nmt.verbs.configs.ScoreConfig",
        code="nmt.verbs.score.run",
        groups=("decoding",),
        examples=(
            "paste src.txt hyp.txt | nmt score run=outputs/mine > scores.txt",
            "nmt score run=outputs/mine normalise=true per_token=true < pairs.tsv",
            "nmt score run=outputs/mine input=pairs.tsv output=scores.txt  # a large file: several workers",
        ),
        reads_input=True,
    ),
    Verb(
        name="rerank",
        summary="choose among the n-best translations of a run by the scores of other runs",
        config="nmt.verbs.configs.RerankConfig",
        code="nmt.verbs.rerank.run",
        groups=("data", "decoding"),
        examples=(
            "nmt rerank run=outputs/mine scorers=[B,C] decoding.beam_size=20 decoding.n_best=20  # scores",
            "nmt rerank run=outputs/mine ... stream=true < src.txt > hyp.txt",
            "nmt rerank run=outputs/mine ... input=src.txt output=hyp.txt  # a large file: several workers",
        ),
        reads_input=True,
    ),
    Verb(
        name="generate",
        summary="continue a text with a trained language model",
        config="nmt.verbs.configs.GenerateConfig",
        code="nmt.verbs.generate.run",
        groups=("decoding",),
        examples=(
            "nmt generate run=outputs/mine prompt='Two men'",
            "nmt generate run=outputs/mine max_tokens=500 decoding.temperature=0.7 decoding.seed=2",
        ),
    ),
    Verb(
        name="attention",
        summary="show what a trained model attends to: a page, images and word alignments",
        config="nmt.verbs.configs.AttentionVerbConfig",
        code="nmt.verbs.attention.run",
        groups=("decoding",),
        examples=(
            "nmt attention run=outputs/mine < src.txt       # attention.html, images and alignments",
            "paste src.txt tgt.txt | nmt attention run=outputs/mine views=[hard] layer=5 output=aligned",
        ),
        reads_input=True,
    ),
)
VERBS = {row.name: row for row in _ROWS}
