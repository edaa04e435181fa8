"""What a server needs of a task: the body of a request, what it asks of the model, and the answers.

Knows no HTTP: a wrong request is a `UserError`, one that is too large a `TooLarge`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictStr

from nmt.decoding import DecodingConfig
from nmt.runs.opened import Run
from nmt.serving.answers import Question
from nmt.serving.batcher import Answer
from nmt.serving.configs import ServingConfig


class TextRequest(BaseModel):
    """The body of a request: lines, and the model that is asked."""

    model_config = ConfigDict(extra="forbid")

    text: StrictStr | list[StrictStr] = Field(description="One line, or several.")
    model: StrictStr | None = Field(
        default=None, description="Name of the model; null: the first for such requests."
    )

    @property
    def lines(self) -> list[str]:
        """The lines of the request."""
        return [self.text] if isinstance(self.text, str) else self.text


@dataclass
class Asked:
    """A request as the queue takes it."""

    lines: list[str]
    """What the model reads: a line of the request, or the sentences of one."""
    question: Question
    numbers: Sequence[int]
    """For each of `lines` the number, from 0, of the line of the request that it is of."""
    whole: Callable[[list[Answer]], list[Answer]] = lambda answers: answers
    """Function from the answers to `lines` to those to the lines of the request."""


Body = TypeVar("Body", bound=TextRequest)


class ServedTask(ABC, Generic[Body]):
    """A run of one task, as a server answers for it."""

    path: ClassVar[str]
    """Path of the endpoint."""
    answers_name: ClassVar[str]
    """Name of the list of answers."""
    does: ClassVar[str]
    """What the model does, behind its name."""
    example: Mapping[str, str] = {"text": "a"}
    """Body of the request that the server answers before the first one of others."""

    def __init__(
        self,
        run: Run,
        decoding: DecodingConfig,
        tgt: str | None,
        cfg: ServingConfig,
        domain: str | None = None,
    ):
        """Keep what is served, and prepare it; raise `UserError` for what the run does not know."""
        self.run, self.decoding, self.tgt, self.domain, self.cfg = run, decoding, tgt, domain, cfg
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Check what is served before the first request is there, and make ready what answers need."""

    @classmethod
    @abstractmethod
    def body(cls) -> type[Body]:
        """Return the class of the body of a request."""

    @abstractmethod
    def asked(self, body: Body) -> Asked:
        """Return what a request asks of the model.

        Raises:
            UserError: the model cannot do that.
        """

    @abstractmethod
    def answers(self, lines: Sequence[str], questions: Sequence[Question]) -> list[Answer]:
        """Return the answer to each line; all questions have one search."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what /models tells of the task."""

    def answer_example(self) -> None:
        """Answer a line, so that what is to fail fails, and what is made at first use is there."""
        asked = self.asked(self.body()(**self.example))
        self.answers(asked.lines, [asked.question])
