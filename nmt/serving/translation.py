"""POST /translate: the answers of `nmt.serving.answers` to the lines of a request."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

from pydantic import Field, StrictBool, StrictInt, StrictStr

from nmt.attention_views.maps import empty_maps
from nmt.data.documents import PreviousLines
from nmt.data.text.sentences import joined
from nmt.decoding import DecodingConfig
from nmt.decoding.configs import LineSplitting
from nmt.errors import UserError
from nmt.runs.asking import has_choice, require_known, targets
from nmt.serving.answers import Question, TooLarge, answers
from nmt.serving.batcher import Answer
from nmt.serving.configs import ServingConfig
from nmt.serving.task import Asked, ServedTask, TextRequest
from nmt.translation.offers import NO_OFFERS, Offers, read_memory
from nmt.translation.requests import Request


class TranslationRequest(TextRequest):
    """The body of POST /translate."""

    n_best: StrictInt | None = Field(None, description="Translations of each line, best first.")
    beam_size: StrictInt | None = Field(None, description="Hypotheses kept open in the search.")
    tgt: StrictStr | None = Field(None, description="Language to translate into, of a model with several.")
    domain: StrictStr | None = Field(None, description="Domain of the lines, of a model that knows some.")
    prefix: StrictStr = Field("", description="Text that each translation begins with.")
    must: list[StrictStr] = Field([], description="Words or phrases that each translation must have.")
    avoid: list[StrictStr] = Field([], description="Words or phrases that no translation may have.")
    terms: dict[StrictStr, StrictStr] = Field({}, description="Terms of the lines and their translations.")
    document: StrictBool = Field(False, description="The lines are one document: context of each other.")
    split: StrictBool = Field(False, description="Translate each line sentence by sentence: paragraphs.")
    markup: StrictBool = Field(False, description="Put inline tags where the translated words are.")
    scores: StrictBool = Field(False, description="Also return scores, and the confidence of each word.")
    attention: StrictBool = Field(False, description="Also return the weights of cross-attention.")


class ServedTranslation(ServedTask[TranslationRequest]):
    """A run that translates."""

    path, answers_name, does = "/translate", "translations", "translates"

    def prepare(self) -> None:
        """Read the translation memory, if any, and tell whether there is attention to show."""
        run, cfg = self.run, self.cfg
        require_known(self.tgt, self.domain, run.cfg.data)
        if (own := getattr(self.decoding, "beam_size", 0)) > cfg.max_beam_size:
            raise UserError(
                f"decoding.beam_size={own} is more than serve.max_beam_size={cfg.max_beam_size}; set either"
            )
        if self.tgt is None and has_choice(run.cfg.data):  # then each request names its language
            self.example = {**self.example, "tgt": targets(run.cfg.data)[0]}
        self._offers, self._remembered = NO_OFFERS, self.tgt
        if cfg.memory is not None:
            memory = read_memory(cfg.memory, run.cfg.data, self.tgt)
            self._offers = Offers(memory=memory, least=cfg.memory_least, tgt=self.tgt)
            self._remembered = self.tgt or run.cfg.data.languages[0][1]
        run.with_offers([], self.decoding, self._offers)
        is_plain = not run.model.parts and not run.cfg.data.context_target
        self.has_attention = is_plain and bool(empty_maps(run.model, run.device).cross)

    @classmethod
    def body(cls) -> type[TranslationRequest]:
        """Return the class of the body of a request."""
        return TranslationRequest

    def asked(self, body: TranslationRequest) -> Asked:
        """Return the sentences to translate, and how they are searched for."""
        wishes = body.prefix, tuple(body.must), tuple(body.avoid), tuple(body.terms.items())
        _require_few(wishes, self.cfg)
        wants_other = (body.tgt or self._remembered) != self._remembered
        offers = NO_OFFERS if wants_other else self._offers
        wanted = self._search(body), body.scores, body.attention, *wishes, body.markup
        question = Question(*wanted, offers)
        if body.attention and not self.has_attention:
            raise UserError(
                "attention: the model attends to no source, or is an ensemble, so it has no weights to show"
            )
        if self.run.cfg.data.context_target and (body.scores or body.attention):
            raise UserError(
                "scores, attention: the model translates the context, too; they cannot be told apart"
            )
        if body.markup:
            self.run.require_markup()
        question.request("")  # refuses what no translation can be asked for
        lines, counts = self._parts(body, question)
        numbers = [number for number, count in enumerate(counts) for _ in range(count)]
        return Asked(lines, question, numbers, functools.partial(_joined, counts=counts))

    def answers(self, lines: Sequence[str], questions: Sequence[Question]) -> list[Answer]:
        """Return the translation of each line."""
        return answers(self.run, lines, questions)

    def facts(self) -> dict[str, Any]:
        """Return the languages, the search, and what it can tell."""
        data, decoding = self.run.cfg.data, self.decoding
        return {
            "src": data.src,
            "tgt": self.tgt or (None if has_choice(data) else data.tgt),
            "languages": sorted({tgt for _, tgt in data.languages}) if data.tags else [],
            "domain": self.domain,
            "domains": sorted({*data.domains.values()}),
            "attention": self.has_attention,
            "scores": not data.context_target,
            "search": decoding.strategy,
            "beam_size": getattr(decoding, "beam_size", None) or None,  # 0: candidates without a beam
            "n_best": decoding.n_best,
        }

    def _parts(self, asked: TranslationRequest, question: Question) -> tuple[list[str], list[int]]:
        """Return the sources to translate, with their context, and how many there are of each line.

        Raises:
            UserError: the run translates into no such language, knows no such domain, or was trained without
                context.
        """
        context, lines = self.run.cfg.data.context, asked.lines
        if asked.document and not context:
            raise UserError("document: the model was trained without context; leave it out")
        search = question.search
        if asked.markup:  # with its tags, a line is split where it is translated
            search = dataclasses.replace(search, split_lines=LineSplitting.none)
        requests = [question.request(line) for line in lines]
        previous = PreviousLines(context)
        for request in requests if asked.document else ():
            request.context = previous.of(request.src)
        segments = self.run.segments(requests, search)
        domain = asked.domain or self.domain
        asking = self.run.asking_for(asked.tgt or self.tgt, segments.requests, domain)
        return [Request.of(one).src for one in asking], segments.counts

    def _search(self, asked: TranslationRequest) -> DecodingConfig:
        """Return the search of the server with what a request says; raise `UserError` if it cannot be."""
        keys = {"n_best": asked.n_best, "beam_size": asked.beam_size}
        settings: dict[str, Any] = {key: value for key, value in keys.items() if value is not None}
        known = [field.name for field in dataclasses.fields(self.decoding)]
        for key, value in settings.items():
            if key not in known:
                raise UserError(f"{key}: the search of this server is {self.decoding.strategy}")
            if not 1 <= value <= self.cfg.max_beam_size:
                raise UserError(f"{key} must be from 1 to {self.cfg.max_beam_size}, but is {value}")
        if asked.split:
            settings["split_lines"] = LineSplitting.all
        try:
            return dataclasses.replace(self.decoding, **settings)
        except UserError as error:  # which names keys of a config, where a request has fields
            raise UserError(*(problem.replace("decoding.", "") for problem in error.problems)) from error


def _joined(answers: list[Answer], counts: list[int]) -> list[Answer]:
    """Return an answer for each line: of several sentences their answers, and the joined text."""
    found, start = list[Answer](), 0
    for count in counts:
        several = answers[start : start + count]
        texts = [str(one["text"]) for one in several]
        found += several if count == 1 else [{"text": joined(texts), "sentences": several}]
        start += count
    return found


def _require_few(
    wishes: tuple[str, tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]], cfg: ServingConfig
) -> None:
    """Raise `TooLarge` for a prefix and phrases that are too long to spell in a search."""
    prefix, must, avoid, terms = wishes
    found = sum(map(len, (prefix, *must, *avoid, *itertools.chain.from_iterable(terms))))
    if found > cfg.max_wish_chars:
        raise TooLarge(
            f"prefix, must, avoid and terms have {found:,} characters, but at most {cfg.max_wish_chars:,} "
            "are allowed",
        )
