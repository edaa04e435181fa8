"""Translations of similar sentences, offered behind sources: a source, a mark, and what it may begin from.

In training it is the target of the other pair whose source is most like this one, so that the model learns
what of it to keep (Bulte and Tezcan 2019, Neural Fuzzy Repair). At translation it comes from a translation
memory; see `nmt.translation.offers`.
"""

from __future__ import annotations

from nmt.data.augment.augmentation import Pair
from nmt.data.documents import current
from nmt.data.draws import Draws
from nmt.data.modifiers import MATCH_MARK, MatchesConfig, ModifierConfig
from nmt.errors import UserError

ESCAPED = MATCH_MARK.replace("<", "< ")
"""What stands for a mark that is part of the text itself."""


def with_match(src: str, translation: str) -> str:
    """Return a source behind which a translation of a similar one is offered, as one line."""
    return f"{src} {MATCH_MARK} {' '.join(translation.replace(MATCH_MARK, ESCAPED).split())}"


def matches(cfg: ModifierConfig, pair: Pair, draws: Draws) -> Pair:
    """Return the pair with its match offered; as it is where no other source is like its own."""
    assert isinstance(cfg, MatchesConfig)
    if pair.neighbours is None:
        raise UserError(
            f"{cfg.key_prefix}.name=matches is for data.augment, where training pairs are compared"
        )
    found = pair.neighbours.translation(current(pair.src), current(pair.tgt), cfg.least)
    return pair if found is None else pair._replace(src=with_match(pair.src, found))
