"""A run that is open, and what may be asked of its model.

Every component gets its own part of the config; no component sees the whole.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from nmt import runtime
from nmt.attention_views.maps import SentenceMaps, attend, attend_labels
from nmt.config.roots import Task, TrainConfig, search_with
from nmt.config.spelling import shell_word
from nmt.data.augment.matches import with_match
from nmt.data.augment.translation_memory import TranslationMemory
from nmt.data.configs import domain_tag
from nmt.data.documents import current_of_each
from nmt.data.modifiers import LEAST_LIKENESS
from nmt.data.parallel_text import ParallelText, Split
from nmt.data.reading.mixture import in_domain, require_domain, without_front
from nmt.data.text.source_factors import sizes
from nmt.data.tokens.tokenizer import Tokenizer
from nmt.decoding.configs import (
    GENERATED_TOKENS,
    DecodingConfig,
    GlossaryUse,
    LineSplitting,
    SamplingConfig,
)
from nmt.errors import Log, UserError, warn
from nmt.metrics.scoring import of_another_task, require_metrics
from nmt.models import build_model
from nmt.models.base import TranslationModel
from nmt.models.vocabulary import add_factors
from nmt.runs.asking import (
    in_context,
    into,
    knows_terms,
    of_domain,
    require_answerable,
    require_choice,
    require_known,
    require_matches,
    require_texts,
    targets,
    use_of_terms,
)
from nmt.runs.directory import RunDirectory
from nmt.runs.evaluation_text import evaluation_text
from nmt.runs.language_model import continued, sampled_lines
from nmt.runs.markup import Markup, Part
from nmt.runs.shown import logged_metrics, run_table
from nmt.runs.task import TrainedModel
from nmt.runs.tasks import Evaluation
from nmt.runtime_config import Precision
from nmt.training.adapting.adaptation import adapt
from nmt.translation.classify import classify
from nmt.translation.evaluate import Scores
from nmt.translation.offers import NO_OFFERS, Offers, use_of
from nmt.translation.requests import Glossary, Request, require_characters, require_text
from nmt.translation.score import PairScore, score
from nmt.translation.segments import (
    Segments,
    Splitting,
    Usual,
    translated_behind_context,
    usual_of,
)
from nmt.translation.translate import (
    LINES_AT_ONCE,
    Translation,
    in_precision,
    longest_source,
    translate,
)

Line = TypeVar("Line", bound=str | Request)


def initial_model(cfg: TrainConfig, tokenizer: Tokenizer, least_vocab_size: int = 0) -> TranslationModel:
    """Build the model before its first update: a function of the config, which includes the seed.

    Both vocabularies have `least_vocab_size` tokens at least, of which `tokenizer` may know fewer.
    """
    runtime.seed_everything(cfg.seed, "model")
    src, tgt = (max(size, least_vocab_size) for size in (tokenizer.src_vocab_size, tokenizer.tgt_vocab_size))
    model = build_model(cfg.model, src_vocab_size=src, tgt_vocab_size=tgt)
    add_factors(model, sizes(cfg.tokenizer.source_factors), cfg.model)
    adapt(model, cfg.adapt)
    return model


@dataclass(repr=False)
class Run(TrainedModel):
    """A trained model and its run directory; for an ensemble, the directory of its first run."""

    directory: RunDirectory
    _copies: dict[Precision | None, TranslationModel] = field(default_factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        name = self.cfg.model.name
        return f"Run({str(self.path)!r}: {name} with {num_parameters:,} parameters on {self.device})"

    def _repr_html_(self) -> str:
        """Return a table of scores, the curve of the validation, and the differences from the defaults."""
        return run_table(repr(self), self.cfg, self.results, self.metrics)

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    @property
    def results(self) -> dict[str, Any] | None:
        """The content of results.json: scores by split, signatures, the step; None before the end."""
        return self.directory.results()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, each with its "step"; a number that was not finite is None."""
        return logged_metrics(self.path / "metrics.jsonl")

    def own_or(self, decoding: DecodingConfig | None) -> DecodingConfig:
        """Return what a caller passes, or the search of the run for None; raise `UserError` for no search."""
        given: object = self.cfg.decoding if decoding is None else decoding
        if not isinstance(given, DecodingConfig):
            raise UserError(
                f"decoding must be a config, such as BeamConfig(beam_size=8), but is {given!r:.80}"
            )
        return given

    def searched(self, decoding: DecodingConfig) -> TranslationModel:
        """Return the model to search with, in `decoding.precision`; a copy is made at the first call."""
        if decoding.precision not in self._copies:
            self._copies[decoding.precision] = in_precision(self.model, decoding, self.device)
        return self._copies[decoding.precision]

    def translate(
        self,
        lines: str | Request | Iterable[str | Request],
        decoding: DecodingConfig | None = None,
        tgt: str | None = None,
        *,
        domain: str | None = None,
        token_scores: bool = False,
        glossary: Mapping[str, str] | None = None,
        glossary_use: GlossaryUse | str = GlossaryUse.auto,
        memory: TranslationMemory | Iterable[tuple[str, str]] | None = None,
        memory_least: float = LEAST_LIKENESS,
        markup: bool = False,
        **settings: Any,
    ) -> Iterator[Translation]:
        """Translate lines, or one line, in order, with the search of the run or another.

        A `Request` is a line with what its translation must have. `settings` are keys of the search, such as
        `beam_size=8, n_best=3`; `tgt` and `domain` are as in `asking_for`; `token_scores` asks for
        `Translation.tokens` and `log_probs`. `glossary` has terms of the source and their translations,
        `glossary_use` is that of `nmt translate`. `memory` has pairs (source, translation), of which a line
        is offered the one whose source is most like it. With `markup`, inline tags are put where the
        translated words are.
        """
        self.require_task(Task.translation)
        search = search_with(self.own_or(decoding), settings)
        several = iter([lines] if isinstance(lines, str | Request) else lines)
        require_known(tgt, domain, self.cfg.data)  # an error is an error before the first line is there
        if memory is not None and not isinstance(memory, TranslationMemory):
            memory = TranslationMemory(memory)
        use = use_of(glossary_use)
        offers = Offers(Glossary({} if glossary is None else glossary), use, memory, memory_least, tgt)
        self.with_offers([], search, offers)
        if markup:
            self.require_markup()

        def in_blocks() -> Iterator[Translation]:
            first_line = 1
            while block := list(itertools.islice(several, LINES_AT_ONCE)):
                yield from self.translated_lines(
                    block,
                    search,
                    tgt,
                    domain=domain,
                    offers=offers,
                    markup=markup,
                    first_line=first_line,
                    token_scores=token_scores,
                )
                first_line += len(block)

        return in_blocks()

    def translated_lines(
        self,
        lines: Sequence[str | Request],
        search: DecodingConfig,
        tgt: str | None,
        *,
        domain: str | None = None,
        offers: Offers = NO_OFFERS,
        markup: bool = False,
        warn: Log = warn,
        first_line: int = 1,
        token_scores: bool = False,
    ) -> list[Translation]:
        """Return the translation of each line: long lines in parts, with `offers`, tags put back.

        `first_line` is the number of the first of them; the other arguments are as in `translate`.
        """
        requests = list(map(Request.of, lines))
        for number, request in enumerate(requests, start=first_line):
            require_answerable(request, tgt, self.cfg.data, f"line {number} of the input")
        tgt = tgt or targets(self.cfg.data)[0]  # of blank lines, if of any
        marked = Markup(requests, warn, first_line) if markup else None
        segments = self.segments(marked.requests if marked else requests, search)
        plain = segments.requests
        segments.requests = list(self.with_offers(plain, search, offers))
        translations = self.translated_parts(
            segments, search, tgt, domain=domain, warn=warn, first_line=first_line, token_scores=token_scores
        )
        found = segments.joined(translations)
        if marked:
            asked = [one.src for one in self.asking_for(tgt, plain, domain)]
            parts = segments.by_line(map(Part, [one.src for one in plain], asked, translations))
            marked.restore(self, parts, found, search)
        return found

    def require_markup(self) -> None:
        """Raise `UserError` for a model whose translations hold those of the context, too."""
        if self.cfg.data.context:
            raise UserError(
                f"markup: {self.path} was trained with data.context, but tags can only be put into the "
                "translation of a line without context; leave markup out, or use a run without context"
            )

    @functools.cached_property
    def usual(self) -> Usual:
        """The length of the sources of the validation pairs, which are taken for those of the training.

        Without a copy of these pairs, the limit of the training pairs.
        """
        kept = self.directory.kept_text(Split.validation, self.cfg.data)
        sources = current_of_each(list(without_front(kept.src))) if kept else []
        return usual_of(sources, self.tokenizer, self.cfg.data.src) or Usual(self.cfg.data.max_tokens)

    def segments(self, lines: Iterable[str | Request], search: DecodingConfig) -> Segments:
        """Return the parts of lines that are translated one by one: see `decoding.split_lines`."""
        requests = list(map(Request.of, lines))
        longest, language = longest_source(self.model, search), self.cfg.data.src
        usual = Usual(search.split_tokens or longest)
        if search.split_lines is LineSplitting.long and search.split_tokens is None:
            usual = self.usual
        splitting = Splitting(search.split_lines, usual, longest, self.tokenizer, language)
        return Segments([splitting.of(request) for request in requests])

    def translated_parts(
        self,
        segments: Segments,
        search: DecodingConfig,
        tgt: str | None,
        *,
        domain: str | None = None,
        warn: Log = warn,
        first_line: int = 1,
        token_scores: bool = False,
    ) -> list[Translation]:
        """Return the translation of each part of `segments`; `first_line` is the number of the first line."""
        numbers = [first_line + line for line in segments.lines]
        asked = self.fitted(self.asking_for(tgt, segments.requests, domain), search)
        return self.translated_requests(asked, search, numbers, warn=warn, token_scores=token_scores)

    def translated_requests(
        self,
        asked: list[Request],
        search: DecodingConfig,
        numbers: Sequence[int],
        *,
        warn: Log = warn,
        **options: bool,
    ) -> list[Translation]:
        """Return the translation of each request of `fitted`, without that of its context.

        `numbers` are those of the lines of the requests; `options` are `token_scores` and `warn_unmet` of
        `nmt.translation.translate`.
        """
        shared: dict[str, Any] = {"device": self.device, "warn": warn, **options}

        def one_by_one(requests: list[Request], places: Sequence[int]) -> list[Translation]:
            named = [numbers[place] for place in places]
            return translate(requests, self.searched(search), self.tokenizer, search, numbers=named, **shared)

        if self.cfg.data.context_target:
            return translated_behind_context(asked, one_by_one, warn)
        return one_by_one(asked, range(len(asked)))

    def classify(
        self,
        lines: str | Iterable[str],
        decoding: DecodingConfig | None = None,
        *,
        warn: Log = warn,
        first_line: int = 1,
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield the label of each line, or of one line, in order, with the probability of every label.

        A line is a text, or two with a TAB between where the model was trained on pairs. `decoding` says how
        many tokens may be read and in which precision; `warn` is told of lines that are cut, which are
        counted from `first_line`.

        Raises:
            UserError: a line has no TAB or several, but is to be two texts, or has one, but is to be one.
        """
        self.require_task(Task.classification)
        search, remaining = self.own_or(decoding), iter([lines] if isinstance(lines, str) else lines)
        while block := list(itertools.islice(remaining, LINES_AT_ONCE)):
            for number, line in enumerate(block, start=first_line):
                require_texts(line, f"line {number} of the input", self.cfg.data)
            found = classify(
                block,
                self.searched(search),
                self.tokenizer,
                search,
                device=self.device,
                warn=warn,
                first_line=first_line,
            )
            for one in found:
                yield one.label, one.probabilities
            first_line += len(block)

    def score(
        self,
        pairs: Iterable[tuple[str, str]],
        decoding: DecodingConfig | None = None,
        tgt: str | None = None,
        *,
        domain: str | None = None,
        warn: Log = warn,
        first_line: int = 1,
    ) -> list[PairScore]:
        """Return the log probability of each pair (source, target); a language model ignores sources.

        `decoding` says how many tokens may be read and in which precision; `tgt` and `domain` are as in
        `asking_for`, `warn` and `first_line` as in `nmt.translation.score`.
        """
        if self.cfg.task is Task.classification:
            self.require_task(Task.translation)
        pairs = list(pairs)
        pair: Any  # from a caller who may have passed anything
        for number, pair in enumerate(pairs):
            if not (
                isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(x, str) for x in pair)
            ):
                raise UserError(
                    f"run.score takes pairs (source, translation), but pairs[{number}] is {pair!r}; "
                    'write run.score([("a source", "its translation")])'
                )
            for side in pair:
                require_characters(side)
        search, sources = self.own_or(decoding), None
        if self.cfg.task is Task.translation:
            asked = self.asking_for(tgt, [src for src, _ in pairs], domain)
            sources = self.in_fitting_context(asked, search)
        else:
            require_known(tgt, domain, self.cfg.data)
        return score(
            sources,
            [target for _, target in pairs],
            self.searched(search),
            self.tokenizer,
            search,
            device=self.device,
            warn=warn,
            first_line=first_line,
        )

    def evaluate(
        self,
        src: Iterable[str] | None = None,
        refs: Iterable[str] | None = None,
        decoding: DecodingConfig | None = None,
        tgt: str | None = None,
        *,
        domain: str | None = None,
        split: str | None = None,
        metrics: Sequence[str] | None = None,
        **settings: Any,
    ) -> Scores:
        """Return the scores of the translations of `src` against `refs`, or those of a split of the run.

        `split` is validation or test; by default it is the one of results.json. `metrics` are by default
        those of the run; `decoding`, `tgt`, `domain` and `settings` are as in `translate`. Nothing is
        written.

        Raises:
            UserError: the sides are empty or differ in length, or the run has no copy of the split.
        """
        metrics = [metrics] if isinstance(metrics, str) else metrics or self.cfg.metrics
        require_metrics(metrics)
        self.require_metrics_of_task(metrics)
        if src is None and refs is None:
            known = [one.value for one in Split]
            if split is not None and split not in known:
                raise UserError(f"split must be one of {', '.join(known)}, but is {split!r}")
            if tgt is not None:
                raise UserError(
                    f"tgt={tgt} is for pairs that are passed: those of a split have their languages"
                )
            chosen = Split(split) if split else self.cfg.data.scored_split
            text = evaluation_text(self.directory, self.cfg, self.cfg.data, chosen, named=False)
            text = dataclasses.replace(text, src=self.in_domain(domain, text.src))
        elif isinstance(src, str) or isinstance(refs, str):
            raise UserError("run.evaluate takes lists of lines; put brackets around the one line")
        else:
            sources, targets = list(() if src is None else src), list(() if refs is None else refs)
            if split is not None or len(sources) != len(targets):
                raise UserError("run.evaluate takes as many sources as references, or a split and neither")
            if not sources:
                raise UserError("run.evaluate has no pair to score: both lists are empty")
            for name, side in (("sources", sources), ("references", targets)):
                for number, line in enumerate(side):
                    require_text(line, f"run.evaluate: {name}[{number}]")
            text = ParallelText(list(self.asking_for(tgt, sources, domain)), targets)
        search = search_with(self.own_or(decoding), settings)
        return Evaluation(self, text, warn).scores(search, metrics)

    def attend(
        self,
        lines: str | Iterable[str],
        decoding: DecodingConfig | None = None,
        tgt: str | None = None,
        *,
        domain: str | None = None,
        neuron_lines: int = 0,
    ) -> Iterator[SentenceMaps]:
        """Yield attention weights for lines (or one) SOURCE, which are translated, or SOURCE, TAB, TARGET.

        The first `neuron_lines` lines have the queries and keys of every head, too. Those of a classifier are
        for the label that it finds; a line is one to classify.
        """
        search = self.own_or(decoding)
        shared: dict[str, Any] = {"device": self.device, "neuron_lines": neuron_lines}
        is_classifier = self.cfg.task is Task.classification
        check = functools.partial(require_texts, data=self.cfg.data) if is_classifier else require_text
        texts = _checked([lines] if isinstance(lines, str) else lines, check)
        if is_classifier:
            require_known(tgt, domain, self.cfg.data)
            return attend_labels(texts, self.model, self.tokenizer, search, **shared)
        self.require_task(Task.translation)
        return attend(self.asking_for(tgt, texts, domain), self.model, self.tokenizer, search, **shared)

    def asking_for(self, tgt: str | None, lines: Iterable[Line], domain: str | None = None) -> Iterable[Line]:
        """Return the lines, or the one line, with the tags of `tgt` and `domain`, if the model has some.

        The language of a request comes before `tgt`. The domain of a request, or of a line that begins with
        its tag, comes before `domain`; without any, no such tag is in front. The context of a request becomes
        a part of its source, if the model was trained with context.

        Raises:
            UserError: the model does not translate into `tgt`, or into several languages and `tgt` is None;
                or it does not know `domain`.
        """
        data = self.cfg.data
        require_choice(tgt, data)
        require_known(tgt, domain, data)
        several = cast("Iterable[Line]", [lines]) if isinstance(lines, str) else lines
        if data.context:
            several = (cast(Line, in_context(line, data)) for line in several)
        if data.domains:
            several = (cast(Line, of_domain(line, domain, data)) for line in several)
        if data.tags:
            several = (cast(Line, into(line, tgt or targets(data)[0], data)) for line in several)
        return several

    def in_domain(self, domain: str | None, lines: Sequence[str]) -> list[str]:
        """Return lines that perhaps have the tag of a language with that of `domain`, unless they have one.

        Raises:
            UserError: the model does not know `domain`.
        """
        if domain is None:
            return list(lines)
        require_domain(domain, self.cfg.data)
        return list(in_domain(lines, domain_tag(domain), self.cfg.data.domain_tags.values()))

    @property
    def knows_terms(self) -> bool:
        """Whether the model was trained with terms in its sources."""
        return knows_terms(self.cfg.data)

    def with_offers(
        self, lines: Iterable[str | Request], search: DecodingConfig, offers: Offers = NO_OFFERS
    ) -> Iterator[Request]:
        """Return the lines with their `offers`: terms, and matches, which `fitted` puts into sources.

        Raises:
            UserError: the model is to be offered terms or matches, and was not trained with them; or it has
                several languages, and nobody knows which one the offers are of; or `search` cannot enforce
                the terms.
        """
        use, data = use_of_terms(offers.use, self.cfg.data), self.cfg.data
        if offers.glossary.terms or offers.memory is not None:
            require_choice(offers.tgt, data, "tgt=..., the language of the glossary or memory")
        offers = dataclasses.replace(offers, tgt=offers.tgt or targets(data)[0])
        if offers.glossary.terms and use is not GlossaryUse.annotate and search.without_phrases:
            raise UserError(f"glossary: {search.without_phrases}")
        if use is not GlossaryUse.constrain and not self.knows_terms:
            raise UserError(
                f"glossary_use={use.value}: {self.path} was not trained with terms in its sources; set "
                "glossary_use=constrain, or train with data.augment=[{name: terms}]"
            )
        if offers.memory is not None:
            require_matches(self.cfg.data, "memory")
        return (offers.applied(Request.of(line), use) for line in lines)

    def fitted(self, asked: Iterable[Request], search: DecodingConfig) -> list[Request]:
        """Return requests of `asking_for` with as much of their context as `search` reads, and their matches.

        A match is left out with which a source would be longer than those of the training, or than `search`
        reads.
        """
        asked = list(asked)
        most = min(self.cfg.data.max_tokens, longest_source(self.model, search))
        sources = self.in_fitting_context([request.src for request in asked], search)
        both = zip(asked, sources, strict=True)
        fitting = (one if src == one.src else dataclasses.replace(one, src=src) for one, src in both)
        return [self._with_match(one, most) for one in fitting]

    def _with_match(self, request: Request, most: int) -> Request:
        if not request.match.strip() or not request.src.strip():
            return request
        src = with_match(request.src, request.match)
        fits = len(self.tokenizer.encode_src([src])[0]) <= most
        return dataclasses.replace(request, src=src if fits else request.src, match="")

    def generate(
        self, prompt: str, max_tokens: int = GENERATED_TOKENS, sampling: SamplingConfig | None = None
    ) -> str:
        """Return the prompt and `max_tokens` tokens that continue it."""
        self.require_task(Task.language_model)
        require_text(prompt, "prompt")
        _require_number("max_tokens", max_tokens, least=1)
        prompt = prompt.rstrip(" ")  # a space belongs to the word after it
        return prompt + continued(self, prompt, sampling or SamplingConfig(), max_tokens)

    def generate_lines(
        self,
        num: int,
        prompt: str = "",
        max_tokens: int = GENERATED_TOKENS,
        sampling: SamplingConfig | None = None,
    ) -> Iterator[str]:
        """Yield `num` lines, each sampled by itself: `prompt`, and at most `max_tokens` tokens.

        No line has more than the model sees at once; a warning says how many have reached that.
        """
        self.require_task(Task.language_model)
        require_text(prompt, "prompt")
        _require_number("num", num, least=0)
        _require_number("max_tokens", max_tokens, least=1)
        return sampled_lines(self, prompt.rstrip(" "), sampling or SamplingConfig(), num, max_tokens)

    def require_metrics_of_task(self, names: Sequence[str]) -> None:
        """Raise `UserError` unless each of `names` scores what the model gives, labels or translations."""
        task = self.cfg.task
        wrong = of_another_task(names, task.value, of_labels=task is Task.classification)
        if wrong and task is not Task.language_model:  # which is scored by its loss alone
            raise UserError(wrong[0])

    def require_task(self, task: Task) -> None:
        """Raise `UserError` for a model that was trained for another task."""
        run, named = self.directory.path, shell_word("run", self.directory.path)
        own = self.cfg.task
        if own is task:
            return
        if task is Task.translation and own is Task.language_model:
            raise UserError(
                f"{run} is a language model and translates nothing; nmt generate {named} continues a text"
            )
        wanted = {
            Task.translation: "translates nothing",
            Task.language_model: "is no language model",
            Task.classification: "finds no labels",
        }
        does = {
            Task.translation: f"translates: nmt translate {named}",
            Task.language_model: f"continues a text: nmt generate {named}",
            Task.classification: f"classifies texts: nmt classify {named}",
        }
        raise UserError(f"{run} {wanted[task]}, but {does[own]}")


def _checked(lines: Iterable[str], check: Callable[[str, str], None]) -> Iterator[str]:
    """Yield the lines of the input, each after a check, which gets the line and its name."""
    for number, line in enumerate(lines, start=1):
        check(line, f"line {number} of the input")
        yield line


def _require_number(name: str, number: object, *, least: int) -> None:
    if type(number) is not int or number < least:
        raise UserError(f"{name} must be a whole number of at least {least}, but is {number!r:.80}")
