"""The size of an update in words: its batches, what each process computes of them, and limits so near that
they must be meant otherwise. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from nmt.training.trainer_config import TrainerConfig

FEW_UPDATES = 20
"""Updates of the largest size whose target tokens are no length of a training."""


def described(cfg: TrainerConfig, step: int, num_processes: int) -> str:
    """Return how large update `step` is, and what each process computes of it."""
    batches, each = cfg.accumulate_at(step), cfg.tokens_per_batch
    whole = f"{batches} batches" if batches > 1 else "1 batch"
    size = f"an update has {whole} of at most {each:,} tokens, padding included"
    size += f"; {batches * each:,} in all" if batches > 1 else ""
    if num_processes == 1:
        return size
    return f"{size}; each of {num_processes} processes computes about {batches * each // num_processes:,}"


def doubts(cfg: TrainerConfig, step: int, num_processes: int) -> Iterator[str]:
    """Yield what to warn of where update `step` is to be the first: settings that often mean something else.

    Each names the key that is likely to be meant.
    """
    batches, each = cfg.accumulate_at(step), cfg.tokens_per_batch
    if batches < num_processes:
        yield (
            f"trainer.accumulate={batches} is less than the {num_processes} processes, which share a batch: "
            f"trainer.batch_tokens={each} is for all of them together, and each computes about "
            f"{batches * each // num_processes:,} tokens of an update; trainer.accumulate={num_processes} "
            f"gives each a batch, and an update {num_processes * each:,} tokens"
        )
    if cfg.max_tokens is not None and cfg.max_tokens < FEW_UPDATES * batches * each:
        yield (
            f"trainer.max_tokens={cfg.max_tokens} ends the training after so many target tokens, of which a "
            f"single update may have {batches * each:,}; the size of a batch is trainer.batch_tokens"
        )
