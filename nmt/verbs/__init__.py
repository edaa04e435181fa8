"""Verbs: one file each, and the table of them.

Knows all components, but only wires them: gives each its part of the config. The table imports no verb, so
that `nmt --help` answers at once. A new verb is a row here, its module and configs/NAME.yaml. The modules in
import order:

    configs             The root configs of verbs; no torch.
    file_parts          The parts of a large file and of its answers, which several machines may share.
    file_job            The work of a model on lines: a stream, or a large file with several workers.
    debug               Show in seconds whether a training would work.
    train               Train a model, or resume its training, and score it.
    prepare             Read, filter and encode the data of a training ahead of it.
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
        summary="train and score a model; the same command again goes on or reports",
        config="nmt.verbs.configs.TrainVerbConfig",
        code="nmt.verbs.train.run",
        groups=_TRAIN_GROUPS,
        examples=(
            "nmt train                                      # the bundled demo",
            "nmt train experiment=multi30k_en_de            # a recipe",
            "nmt train data=multi30k model=transformer_base run=outputs/mine",
            "nmt train init=outputs/mine data=files ...     # from a trained model",
            "nmt train -m model.num_heads=2,4 schedule.factor=0.5,1.0",
        ),
        first_keys=_FIRST_KEYS,
        opens_run=False,
        writes_run=True,
        short={"init": "init.run"},
        shared=True,
        scores=True,
    ),
    Verb(
        name="prepare",
        summary="read, filter and encode the data of a training ahead of it",
        config="nmt.verbs.configs.PrepareConfig",
        code="nmt.verbs.prepare.run",
        groups=_TRAIN_GROUPS,
        examples=(
            "nmt prepare data=wmt19 model=transformer_big   # what nmt train will be told",
            "nmt prepare experiment=wmt14_en_de prepare.workers=32    # processes",
        ),
        first_keys=_FIRST_KEYS,
        opens_run=False,
        short={"init": "init.run"},
        outputs={"prepare.filtered": ""},
    ),
    Verb(
        name="distil",
        summary="train a student on what trained models make of the training pairs",
        config="nmt.verbs.configs.DistilConfig",
        code="nmt.verbs.distil.run",
        groups=_TRAIN_GROUPS,
        examples=(
            "nmt distil teacher=[outputs/a,outputs/b] model=transformer_tiny",
            "nmt distil teacher=outputs/a distil.decoding=beam distil.decoding.n_best=4",
            "nmt distil teacher=[outputs/en_de,outputs/de_en] distil.combine=each",
            "nmt distil teacher=outputs/de_en data=multi30k distil.tgt_text=[news.de]",
        ),
        opens_run=False,
        writes_run=True,
        data_from="teacher",
        short={"init": "init.run"},
        mounts={"distil.decoding": "decoding"},
        shared=True,
        scores=True,
    ),
    Verb(
        name="evaluate",
        summary="score a trained model: its recorded score again, or on other data",
        config="nmt.verbs.configs.EvaluateConfig",
        code="nmt.verbs.evaluate.run",
        groups=("data", "decoding"),
        examples=(
            "nmt evaluate run=outputs/mine                  # the recorded score again",
            "nmt evaluate run=outputs/mine data.scored_split=validation",
            "nmt evaluate run=outputs/mine checkpoint=best data=wmt16",
        ),
        shared=True,
        scores=True,
    ),
    Verb(
        name="translate",
        summary="translate standard input line by line, or a large file",
        config="nmt.config.roots.TranslateConfig",
        code="nmt.verbs.translate.run",
        groups=("decoding",),
        examples=(
            "nmt translate run=outputs/mine < src.txt > hyp.txt",
            "nmt translate run=outputs/mine decoding=greedy",
            "nmt translate run=[outputs/mine,outputs/other] < src.txt     # an ensemble",
            "nmt translate run=outputs/mine input=src.txt output=hyp.txt  # a large file",
            "paste src.txt prefixes.txt | nmt translate run=outputs/mine prefixes=true",
            "nmt translate run=outputs/mine glossary=terms.tsv < src.txt",
            "nmt translate run=outputs/mine memory=memory.tmx < src.txt",
        ),
        reads_input=True,
        outputs={"output": ""},
    ),
    Verb(
        name="score",
        summary="log probabilities of given translations: SOURCE TAB TARGET a line",
        config="nmt.verbs.configs.ScoreConfig",
        code="nmt.verbs.score.run",
        groups=("decoding",),
        examples=(
            "paste src.txt hyp.txt | nmt score run=outputs/mine > scores.txt",
            "nmt score run=outputs/mine normalise=true per_token=true < pairs.tsv",
            "nmt score run=outputs/mine input=pairs.tsv output=scores.txt  # a large file",
        ),
        reads_input=True,
        outputs={"output": ""},
    ),
    Verb(
        name="classify",
        summary="labels of texts: a text in, LABEL TAB PROBABILITY out, line by line",
        config="nmt.verbs.configs.ClassifyConfig",
        code="nmt.verbs.classify.run",
        groups=("decoding",),
        examples=(
            "nmt classify run=outputs/mine < texts.txt > labels.tsv",
            "nmt classify run=outputs/mine format=jsonl < texts.txt     # all probabilities",
            "nmt classify run=outputs/mine input=texts.txt output=labels.jsonl",
        ),
        reads_input=True,
        outputs={"output": ""},
    ),
    Verb(
        name="rerank",
        summary="choose among n-best translations by the scores of other runs",
        config="nmt.verbs.configs.RerankConfig",
        code="nmt.verbs.rerank.run",
        groups=("data", "decoding"),
        examples=(
            "nmt rerank run=outputs/mine scorers=[B,C] decoding.n_best=20   # scores",
            "nmt rerank run=outputs/mine ... stream=true < src.txt > hyp.txt",
            "nmt rerank run=outputs/mine ... input=src.txt output=hyp.txt  # a large file",
        ),
        reads_input=True,
        stream_key="stream",
        scores=True,
        outputs={"output": ""},
    ),
    Verb(
        name="import",
        summary="make a run of a model of OPUS-MT, M2M-100 or NLLB-200",
        config="nmt.verbs.configs.ImportConfig",
        code="nmt.verbs.import_model.run",
        groups=(),
        examples=("nmt import folder=opus-mt-en-de src=en tgt=de run=outputs/opus",),
        opens_run=False,
        writes_run=True,
    ),
    Verb(
        name="shortlist",
        summary="list the target pieces that source pieces become, for faster search",
        config="nmt.verbs.configs.ShortlistConfig",
        code="nmt.verbs.shortlist.run",
        groups=("data",),
        examples=(
            "nmt shortlist run=outputs/mine read_corpus=true   # pairs of its training",
            "nmt shortlist run=outputs/mine data=files data.train=corpus/train",
            "nmt translate run=outputs/mine decoding.shortlist=FILE < src.txt",
        ),
        outputs={"output": "shortlist.npz"},
    ),
    Verb(
        name="generate",
        summary="continue a text with a trained language model",
        config="nmt.verbs.configs.GenerateConfig",
        code="nmt.verbs.generate.run",
        groups=("decoding",),
        examples=(
            "nmt generate run=outputs/mine prompt='Two men'",
            "nmt generate run=outputs/mine max_tokens=500 decoding.temperature=0.7",
            "nmt generate run=outputs/mine lines=100000 > more.en   # lines like the corpus",
        ),
    ),
    Verb(
        name="attention",
        summary="show what a model attends to: a page, images and word alignments",
        config="nmt.verbs.configs.AttentionVerbConfig",
        code="nmt.verbs.attention.run",
        groups=("decoding",),
        examples=(
            "nmt attention run=outputs/mine < src.txt       # a page, images, alignments",
            "paste src.txt tgt.txt | nmt attention run=outputs/mine views=[hard] layer=5",
        ),
        reads_input=True,
    ),
    Verb(
        name="runs",
        summary="list the runs in a folder: state, scores, cost, keys that differ",
        config="nmt.comparison.configs.RunsConfig",
        code="nmt.verbs.runs.run",
        groups=(),
        examples=(
            "nmt runs                                       # all in outputs/, newest first",
            "nmt runs outputs/multirun sort=bleu state=done",
            "nmt runs 'match=*dropout*' format=csv > runs.csv",
        ),
        opens_run=False,
        words="folder",
    ),
    Verb(
        name="compare",
        summary="compare runs: scores with tests, curves, sentences, costs; a page",
        config="nmt.comparison.configs.CompareConfig",
        code="nmt.verbs.compare.run",
        groups=(),
        examples=(
            "nmt compare outputs/a outputs/b                # b against a, on validation",
            "nmt compare outputs/base outputs/multirun/mine # runs of a sweep against one",
            "nmt compare outputs/a outputs/b split=test     # at the end",
            "nmt compare outputs/a marian.de split=test     # beside another system",
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
        summary="look at the environment or a corpus before training; remedies",
        config="nmt.doctor.configs.DoctorConfig",
        code="nmt.verbs.doctor.run",
        groups=_TRAIN_GROUPS,
        examples=(
            "nmt doctor                                     # the environment",
            "nmt doctor data=files data.train=corpus/train data.src=en data.tgt=de",
            "nmt doctor experiment=multi30k_en_de           # the corpus of a recipe",
            "nmt doctor data=multi30k doctor.page=doctor.html doctor.json=doctor.json",
            "nmt doctor run=outputs/mine                    # the corpus of a training",
        ),
        first_keys=("doctor.page", "doctor.json", "doctor.examples", "doctor.max_pairs"),
        opens_run=False,
        short={"init": "init.run"},
        outputs={"doctor.page": "", "doctor.json": ""},
    ),
    Verb(
        name="serve",
        summary="answer requests over HTTP, and show a page to type sentences at",
        config="nmt.verbs.configs.ServeConfig",
        code="nmt.verbs.serve.run",
        groups=("decoding",),
        examples=(
            "nmt serve run=outputs/mine                     # at http://127.0.0.1:8000/",
            "nmt serve run=outputs/mine serve.port=8080 runtime.device=cuda:1",
            "nmt serve run=outputs/mine serve.host=0.0.0.0 serve.token=SECRET",
            "nmt serve run=outputs/labels                   # a classifier: POST /classify",
            "nmt serve 'models={en-de: outputs/a, de-en: [outputs/b,outputs/c]}'",
        ),
        models="models",
        common=(
            "runtime",
            "serve.host",
            "serve.port",
            "serve.token",
            "serve.max_body_bytes",
            "serve.timeout_seconds",
        ),
    ),
    Verb(
        name="export",
        summary="write the model of a run for CTranslate2, transformers or others",
        config="nmt.exchange.configs.ExportConfig",
        code="nmt.verbs.export.run",
        groups=("decoding",),
        examples=(
            "nmt export run=outputs/mine format=ctranslate2 output=mine.ct2",
            "nmt export run=outputs/mine format=huggingface output=mine.hf",
            "nmt export run=outputs/mine format=safetensors output=mine.weights",
        ),
        outputs={"output": ""},
    ),
)
VERBS = {row.name: row for row in _ROWS}
