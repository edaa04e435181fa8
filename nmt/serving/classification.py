"""POST /classify: the label of each line, and the probabilities of all labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nmt.data.configs import SEPARATOR
from nmt.data.reading.mixture import require_domain
from nmt.decoding import DecodingConfig
from nmt.errors import UserError
from nmt.runs.asking import require_texts
from nmt.serving.answers import Question
from nmt.serving.batcher import Answer
from nmt.serving.task import Asked, ServedTask, TextRequest

KEYS = ("batch_tokens", "max_source_tokens", "precision")
"""Keys of the search that say how texts are read: there is no search."""


class ClassificationRequest(TextRequest):
    """The body of POST /classify; a line is a text, or two with a TAB between for a model of pairs."""


class ServedClassification(ServedTask[ClassificationRequest]):
    """A run that finds labels."""

    path, answers_name, does = "/classify", "predictions", "classifies texts"

    def prepare(self) -> None:
        """Refuse a language, which labels have none of, and tell whether a line is two texts."""
        data = self.run.cfg.data
        if self.tgt is not None:
            raise UserError(
                f"tgt={self.tgt}: {self.run.path} classifies texts, into no language; leave tgt out"
            )
        if self.domain is not None:
            require_domain(self.domain, data)
        self.is_of_pairs = SEPARATOR in data.symbols
        self.example = {"text": "a\ta" if self.is_of_pairs else "a"}
        self._question = Question(DecodingConfig(**{key: getattr(self.decoding, key) for key in KEYS}))

    @classmethod
    def body(cls) -> type[ClassificationRequest]:
        """Return the class of the body of a request."""
        return ClassificationRequest

    def asked(self, body: ClassificationRequest) -> Asked:
        """Return the texts; raise `UserError` for a line that has not as many as the model reads."""
        for number, line in enumerate(body.lines):
            require_texts(line, f"text[{number}]", self.run.cfg.data)
        return Asked(body.lines, self._question, range(len(body.lines)))

    def answers(self, lines: Sequence[str], questions: Sequence[Question]) -> list[Answer]:
        """Return the label and the probabilities of each line."""
        found = self.run.classify(lines, questions[0].search)
        return [{"label": label, "probabilities": probabilities} for label, probabilities in found]

    def facts(self) -> dict[str, Any]:
        """Return the labels, and whether a line is two texts."""
        return {"labels": self.run.tokenizer.labels, "pairs": self.is_of_pairs}
