"""The limits of a server. Imports nothing heavy: help and completion read this module."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.checks import at_least, within
from nmt.data.modifiers import LEAST_LIKENESS
from nmt.errors import UserError


@dataclass
class ServingConfig:
    """Address and limits of a server."""

    host: str = "127.0.0.1"
    """Address to listen at; 127.0.0.1 is reachable from this machine alone, 0.0.0.0 from every network."""
    port: int = 8000
    """Port to listen at; 0: any that is free."""
    token: str | None = None
    """Secret that clients have to send as `Authorization: Bearer TOKEN`; null: nobody is asked."""
    memory: str | None = None
    """Translation memory, of which each line is offered the translation of the source most like it: a file as
    `memory` of nmt translate."""
    memory_least: float = LEAST_LIKENESS
    """Least likeness of the two sources: 1 less the share of the words that have to be edited."""
    max_lines: int = 256
    """Most lines of a request."""
    max_chars: int = 5000
    """Most characters of a line."""
    max_wish_chars: int = 1000
    """Most characters of prefix, must, avoid and terms together."""
    max_body_bytes: int = 1 << 20
    """Most bytes of the body of a request."""
    max_beam_size: int = 16
    """Most hypotheses per sentence, open or returned, that a request may ask for."""
    queue_requests: int = 256
    """Most requests that are read, wait or are being answered; more are refused with 503."""
    queue_tokens: int = 65536
    """Most source tokens that wait or are being translated; more are refused with 503."""
    timeout_seconds: float = 60.0
    """Longest time for an answer; a request that takes longer ends with 504, and its lines are dropped."""

    def __post_init__(self) -> None:
        limits = ("max_lines", "max_chars", "max_wish_chars", "max_body_bytes", "max_beam_size")
        at_least(self, "serve", 1, *limits, "queue_requests", "queue_tokens")
        within(self, "serve", "[0, 65535]", "port")
        within(self, "serve", "(0, 86400]", "timeout_seconds")
        within(self, "serve", "(0, 1]", "memory_least")
        if self.memory is not None and not self.memory.strip():
            raise UserError("serve.memory must name a file, but is empty")
        if not self.host.strip():
            raise UserError("serve.host must be an address, but is empty; 127.0.0.1 is this machine alone")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise UserError("serve.token must have printable ASCII characters alone")
        if self.token is not None and (not self.token or " " in self.token):
            raise UserError("serve.token must not be empty and have no spaces; null asks for none")
