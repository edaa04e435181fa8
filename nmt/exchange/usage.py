"""Short Python programs that use an exported folder, made for one run: text in, translations out.

They do what `nmt translate` does with a line before and after the model: tags that ask for a language and a
domain, lower case, punctuation, capitals, symbols, the order of the target. They are run in the tests.
"""

from __future__ import annotations

from nmt.config.roots import Task
from nmt.data.configs import domain_tag
from nmt.data.tokens.tokenizer_training import SPACE, Case, TagSide, TokenizerKind, symbol_pattern
from nmt.exchange.shared import SOURCE, TARGET, beam_search_of
from nmt.runs.opened import Run

STRIP = """
def bare(line):  # without punctuation, as in training
    line = line.replace("'", "").replace("\\N{RIGHT SINGLE QUOTATION MARK}", "")
    return "".join(" " if unicodedata.category(c).startswith("P") else c for c in line)
"""


OUTSIDE = """
def outside(line, change):  # the symbols stay as they are
    return "".join(part if i % 2 else change(part) for i, part in enumerate(re.split(SYMBOLS, line)))
"""


def ctranslate2_program(run: Run, longest: int) -> str:
    """Return the program for a folder of CTranslate2 whose positions allow `longest` tokens."""
    beam_size, alpha = beam_search_of(run.cfg.decoding)
    words = run.tokenizer.kinds[0] is TokenizerKind.word
    encode = "source.encode(line, out_type=str)"
    if words:
        encode = f'["{SPACE}" + word for word in source.normalize(line).split("{SPACE}")[1:]]'
    tags = run.cfg.tokenizer.src_tag, run.cfg.tokenizer.tgt_tag
    if tags[0]:
        encode = f"[{tags[0]!r}, *found] if (found := {encode}) else []"
    tag = "TARGET_TAGS[language]" if _are_on_targets(run) else repr(tags[1]) if tags[1] else ""
    start = f"\n        target_prefix=[[{tag}]] * len(pieces)," if tag else ""
    pieces = "result.hypotheses[0]" + ("[1:]" if tag else "")
    pieces += "[::-1]" if run.cfg.tokenizer.right_to_left else ""
    ratio, offset = run.cfg.decoding.max_length_ratio, run.cfg.decoding.max_length_offset
    return f"""{_imports(run, ["ctranslate2", "sentencepiece"])}
FOLDER = "."
source = sentencepiece.SentencePieceProcessor(model_file=f"{{FOLDER}}/{SOURCE}")
target = sentencepiece.SentencePieceProcessor(model_file=f"{{FOLDER}}/{TARGET}")
translator = ctranslate2.Translator(FOLDER, device="cpu")  # or "cuda"
{_preparation(run)}
def translate(lines{_asking_arguments(run)}):
    prepared = {_prepared(run)}
    pieces = [{encode} for line in prepared]
    tokens = max(map(len, pieces), default=0) + 1  # of the longest line, its end counted
    results = translator.translate_batch(
        pieces,{start}
        beam_size={beam_size},
        length_penalty={alpha},
        max_input_length={longest},
        max_decoding_length=max(min({longest}, int({ratio} * tokens) + {offset}) - 1, 1),
        min_decoding_length=0,
        max_batch_size=32,
    )
    return [{_in_case(run, f"target.decode(target.piece_to_id({pieces}))")} for result in results]
"""


def huggingface_program(run: Run, longest: int) -> str:
    """Return the program for a folder of `transformers` whose positions allow `longest` tokens."""
    ratio, offset = run.cfg.decoding.max_length_ratio, run.cfg.decoding.max_length_offset
    return f"""{_imports(run, ["torch"])}
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

FOLDER = "."
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = AutoModelForSeq2SeqLM.from_pretrained(FOLDER).eval()
{_preparation(run)}
def translate(lines{_asking_arguments(run)}):
    prepared = {_prepared(run)}
    batch = tokenizer(prepared, return_tensors="pt", padding=True, truncation=True)
    limit = min({longest}, int({ratio} * batch.input_ids.shape[1]) + {offset})
    with torch.inference_mode():
        found = model.generate(**batch, max_length=limit)
    texts = zip(tokenizer.batch_decode(found, skip_special_tokens=True), batch.attention_mask.sum(1))
    return [{_in_case(run, "text")} if tokens > 1 else "" for text, tokens in texts]  # "": the end alone
"""


def safetensors_program(run: Run, longest: int) -> str:
    """Return the program that reads the weights, and text of any length; it does not compute the model."""
    target = f'target = sentencepiece.SentencePieceProcessor(model_file=f"{{FOLDER}}/{TARGET}")'
    if run.tokenizer.labels:
        target = 'labels = dict(enumerate(config["labels"], config["first_label_id"]))  # by their ids'
    return f"""{_imports(run, ["json", "sentencepiece"])}
from safetensors.torch import load_file

FOLDER = "."
with open(f"{{FOLDER}}/config.json", encoding="utf-8") as file:
    config = json.load(file)
weights = load_file(f"{{FOLDER}}/model.safetensors")
weights |= {{name: weights[first] for name, first in config["tied"].items()}}
source = sentencepiece.SentencePieceProcessor(model_file=f"{{FOLDER}}/{SOURCE}")
{target}
"""


RUN_PROGRAMS = {
    Task.translation: """def translate(lines{argument}):
    return [found.text for found in run.translate(lines{given})]""",
    Task.language_model: """def go_on(text):
    return run.generate(text)""",
    Task.classification: """def classify(lines):
    return [label for label, probabilities in run.classify(lines)]""",
}


def run_program(run: Run, longest: int) -> str:
    """Return the program for a run directory; what a line needs is in its config."""
    argument = _asking_arguments(run)
    given = ", tgt=language" if run.cfg.data.tags else ""
    given += ", domain=domain" if run.cfg.data.domains else ""
    function = RUN_PROGRAMS[run.cfg.task].format(argument=argument, given=given)
    return f"""import nmt

FOLDER = "."
run = nmt.open_run(FOLDER)


{function}
"""


def _imports(run: Run, modules: list[str]) -> str:
    cfg = run.cfg.tokenizer
    standard = ["re"] * bool(cfg.symbols) + ["unicodedata"] * cfg.strip_punctuation
    blocks = ["\n".join(f"import {name}" for name in names) for names in (standard, modules) if names]
    if cfg.moses_src:
        blocks[-1] += "\nfrom sacremoses import MosesPunctNormalizer"
    if cfg.case is Case.markup:
        blocks.append("from casing import marked, restored  # casing.py of this folder")
    return "\n\n".join(blocks) + "\n"


def _preparation(run: Run) -> str:
    """Return the definitions that `_prepared` needs."""
    cfg = run.cfg.tokenizer
    found = f"TAGS = {run.cfg.data.tags!r}\n" if _are_on_sources(run) else ""
    if _are_on_targets(run):
        spelt = {
            tgt: run.tokenizer.tgt_pieces([""], [f"{tag} "])[0][0].text
            for tgt, tag in run.cfg.data.tags.items()
        }
        found += f"TARGET_TAGS = {spelt!r}\n"
    if run.cfg.data.domains:
        fronts: dict[str | None, str] = {None: ""}
        fronts |= {one: f"{domain_tag(one)} " for one in run.cfg.data.domains.values()}
        found += f"DOMAINS = {fronts!r}\n"
    if cfg.moses_src:
        found += f"moses = MosesPunctNormalizer(lang={cfg.moses_src!r})\n"
    if cfg.symbols:
        found += f"SYMBOLS = {symbol_pattern(tuple(cfg.symbols)).pattern!r}\n{OUTSIDE}"
    return found + (STRIP + "\n" if cfg.strip_punctuation else "\n")


def _are_on_sources(run: Run) -> bool:
    return bool(run.cfg.data.tags) and run.cfg.tokenizer.tag_side is not TagSide.target


def _are_on_targets(run: Run) -> bool:
    return bool(run.cfg.data.tags) and run.cfg.tokenizer.tag_side is not TagSide.source


def _asking_arguments(run: Run) -> str:
    tags = list(run.cfg.data.tags)
    found = "" if not tags else f", language={tags[0]!r}" if len(tags) == 1 else ", language"
    return found + (", domain=None" if run.cfg.data.domains else "")


def _prepared(run: Run) -> str:
    """Return the expression for the lines as SentencePiece gets them."""
    tokenizer = run.cfg.tokenizer
    front = "{TAGS[language]} " if _are_on_sources(run) else ""
    front += "{DOMAINS[domain]}" if run.cfg.data.domains else ""
    start = f'(f"{front}{{line}}" if line.strip() else line)' if front else "line"
    if tokenizer.moses_src:
        start = f"moses.normalize({start})"
    line = "part" if tokenizer.symbols else start
    if tokenizer.lowercase:
        line = f"{line}.lower()"
    if tokenizer.strip_punctuation:
        line = f"bare({line})"
    if tokenizer.case is Case.markup:
        line = f"marked([{line}])[0]"
    if tokenizer.symbols:
        line = start if line == "part" else f"outside({start}, lambda part: {line})"
    return "list(lines)" if line == "line" else f"[{line} for line in lines]"


def _in_case(run: Run, text: str) -> str:
    """Return the expression for the text of a translation, given that for the text of its pieces."""
    return f"restored({text})" if run.cfg.tokenizer.case is Case.markup else text
