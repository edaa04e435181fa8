"""Verbs: one file each, and the table of them.

Knows all components, but only wires them: gives each its part of the config. The table imports no verb, so
that `nmt --help` answers at once. A new verb is a row here, its module and configs/NAME.yaml. The modules in
import order:

    configs             The root configs of verbs; no torch.
    file_job            The work of a model on lines: a stream, or a large file with several workers.
    train               Train a model, or resume its training, and score it.
    prepare             Read, filter and encode the data of a training ahead of it.
    debug               Train, or show in seconds whether a training would work.
    evaluate            Score a trained model.
    translate           Translate standard input, or a large file.
    score               Score given translations.
    classify            Find the labels of texts.
    rerank              Choose among the translations of a run by the scores of other runs.
    distil              Train a student on the translations of teachers.
    import_model        Make a run of a model that another program has trained.
    shortlist           Make a file of the target pieces that source pieces become.
    generate            Continue a text.
    attention           Show what a model attends to.
    runs                List runs.
    compare             Compare runs.
    reproduce           Train a run again and compare.
    doctor              Look at the environment and at a corpus.
    serve               Answer requests over HTTP.
    export              Write the model of a run for another program.
"""

from nmt.config.verb import Verb

_TRAIN_GROUPS = (
    "data",
    "model",
    "tokenizer",
    "optimizer",
    "schedule",
    "objective",
    "adapt",
    "trainer",
    "decoding",
    "experiment",
)
_FIRST_KEYS = (
    "run",
    "data.path",
    "tokenizer.vocab_size",
    "model.d_model",
    "model.dropout",
    "schedule.peak_rate",
    "schedule.factor",
    "trainer.batch_tokens",
    "trainer.max_steps",
    "runtime.device",
    "decoding.beam_size",
)
_ROWS = (
    Verb(
        name="train",
        summary="train a model and score it; the same command again continues or reports",
        config="nmt.verbs.configs.TrainVerbConfig",
        code="nmt.verbs.debug.run",
        groups=_TRAIN_GROUPS,
        examples=(
            "nmt train                                      # the bundled demo",
            "nmt train experiment=multi30k_en_de            # a recipe",
            "nmt train data=multi30k model=transformer_base schedule.warmup_steps=2000 run=outputs/mine",
            "nmt train init=outputs/mine data=files data.train=corpus/train ...   # from a trained model",
            "nmt train -m model.num_heads=2,4 schedule.factor=0.5,1.0",
        ),
        first_keys=_FIRST_KEYS,
        opens_run=False,
        short={"init": "init.run"},
        shared=True,
    ),
    Verb(
        name="prepare",
        summary="read, filter and encode the data of a training ahead of it; the same command goes on",
        config="nmt.verbs.configs.PrepareConfig",
        code="nmt.verbs.prepare.run",
        groups=_TRAIN_GROUPS,
        examples=(
            "nmt prepare data=wmt19 tokenizer=bpe model=transformer_big   # what nmt train will be told",
            "nmt prepare experiment=wmt14_en_de prepare.workers=32        # processes that encode",
        ),
        first_keys=_FIRST_KEYS,
        opens_run=False,
        short={"init": "init.run"},
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
        short={"init": "init.run"},
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
            "paste src.txt prefixes.txt | nmt translate run=outputs/mine prefixes=true",
            "nmt translate run=outputs/mine glossary=terms.tsv input=src.jsonl output=hyp.jsonl",
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
        name="classify",
        summary="labels of texts: a text in, LABEL TAB PROBABILITY out, line by line, or a large file",
        config="nmt.verbs.configs.ClassifyConfig",
        code="nmt.verbs.classify.run",
        groups=("decoding",),
        examples=(
            "nmt classify run=outputs/mine < texts.txt > labels.tsv",
            "nmt classify run=outputs/mine format=jsonl < texts.txt       # all probabilities",
            "nmt classify run=outputs/mine input=texts.txt output=labels.jsonl  # several workers",
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
        name="import",
        summary="make a run of a model that another program has trained (OPUS-MT, M2M-100, NLLB-200)",
        config="nmt.verbs.configs.ImportConfig",
        code="nmt.verbs.import_model.run",
        groups=(),
        examples=("nmt import folder=opus-mt-en-de src=en tgt=de run=outputs/opus",),
        opens_run=False,
    ),
    Verb(
        name="shortlist",
        summary="make a file of the target pieces that source pieces become, for faster search",
        config="nmt.verbs.configs.ShortlistConfig",
        code="nmt.verbs.shortlist.run",
        groups=("data",),
        examples=(
            "nmt shortlist run=outputs/mine read_corpus=true           # from the pairs of its training",
            "nmt shortlist run=outputs/mine data=files data.train=corpus/train translations=50",
            "nmt translate run=outputs/mine decoding.shortlist=outputs/mine/shortlist.npz < src.txt",
        ),
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
            "nmt generate run=outputs/mine lines=100000 > more.en      # lines like the corpus",
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
    Verb(
        name="runs",
        summary="list the runs in a folder: state, scores, cost, and what differs in their configs",
        config="nmt.comparison.configs.RunsConfig",
        code="nmt.verbs.runs.run",
        groups=(),
        examples=(
            "nmt runs                                       # all runs in outputs/, the newest first",
            "nmt runs outputs/multirun sort=bleu state=done",
            "nmt runs match=*dropout* format=csv > runs.csv",
        ),
        opens_run=False,
        words="folder",
    ),
    Verb(
        name="compare",
        summary="compare runs: scores with intervals and tests, curves, sentences, costs; also as a page",
        config="nmt.comparison.configs.CompareConfig",
        code="nmt.verbs.compare.run",
        groups=(),
        examples=(
            "nmt compare outputs/a outputs/b                # b against a, on validation",
            "nmt compare outputs/base outputs/multirun/mine  # all runs of a sweep against one",
            "nmt compare outputs/a outputs/b split=test     # at the end",
        ),
        opens_run=False,
        words="run",
    ),
    Verb(
        name="reproduce",
        summary="train a run again from its stored config, and report what differs",
        config="nmt.comparison.configs.ReproduceConfig",
        code="nmt.verbs.reproduce.run",
        groups=(),
        examples=(
            "nmt reproduce run=outputs/mine                 # into outputs/mine-reproduced",
            "nmt reproduce run=outputs/mine output=/tmp/again tolerance=0.5",
        ),
        opens_run=False,
        words="run",
    ),
    Verb(
        name="doctor",
        summary="look at the environment, or at a corpus, before anyone trains: findings and remedies",
        config="nmt.doctor.configs.DoctorConfig",
        code="nmt.verbs.doctor.run",
        groups=_TRAIN_GROUPS,
        examples=(
            "nmt doctor                                     # the environment",
            "nmt doctor data=files data.train=corpus/train data.src=en data.tgt=de   # a corpus",
            "nmt doctor experiment=multi30k_en_de           # the corpus of a recipe",
            "nmt doctor data=multi30k doctor.page=doctor.html doctor.json=doctor.json",
        ),
        first_keys=("doctor.page", "doctor.json", "doctor.examples", "doctor.max_pairs"),
        opens_run=False,
    ),
    Verb(
        name="serve",
        summary="answer requests over HTTP, and show a page to type sentences at",
        config="nmt.verbs.configs.ServeConfig",
        code="nmt.verbs.serve.run",
        groups=("decoding",),
        examples=(
            "nmt serve run=outputs/mine                     # the page is at http://127.0.0.1:8000/",
            "nmt serve run=outputs/mine serve.port=8080 decoding.beam_size=8 runtime.device=cuda:1",
            "nmt serve run=outputs/mine serve.host=0.0.0.0 serve.token=SECRET",
            "nmt serve run=outputs/labels                   # a classifier: POST /classify",
        ),
    ),
    Verb(
        name="export",
        summary="write the model of a run for CTranslate2, Hugging Face transformers, or any program",
        config="nmt.exchange.configs.ExportConfig",
        code="nmt.verbs.export.run",
        groups=("decoding",),
        examples=(
            "nmt export run=outputs/mine format=ctranslate2 output=mine.ct2 quantization=int8",
            "nmt export run=outputs/mine format=huggingface output=mine.hf",
            "nmt export run=outputs/mine checkpoint=best format=safetensors output=mine.weights",
        ),
    ),
)
VERBS = {row.name: row for row in _ROWS}
