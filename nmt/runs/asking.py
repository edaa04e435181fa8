"""Sources as a model reads them: behind their context, and the tags that ask for a language and a domain.

What the lines of one input are asked for, `tgt` and `domain` of all of them, may be another thing in a
`Request`, which comes first.
"""

from __future__ import annotations

import dataclasses

from nmt.data.configs import SEPARATOR, DataConfig, domain_tag
from nmt.data.documents import composed
from nmt.data.modifiers import MATCH_MARK, TERM_MARKS
from nmt.data.reading.mixture import in_domain, require_domain, tagged
from nmt.decoding.configs import DecodingConfig, GlossaryUse
from nmt.errors import UserError, suggest
from nmt.translation.requests import Request, require_text


def targets(data: DataConfig) -> list[str]:
    """Return the languages that a run of `data` translates into."""
    return list(dict.fromkeys(tgt for _, tgt in data.languages))


def has_choice(data: DataConfig) -> bool:
    """Return whether a run of `data` has to be told the language to translate into."""
    return bool(data.tags) and len(targets(data)) > 1


def require_target(tgt: str, data: DataConfig, where: str = "tgt") -> None:
    """Raise `UserError` unless a run of `data` translates into `tgt`; `where` says what names it."""
    known = targets(data)
    if data.has_labels or not data.has_source:
        raise UserError(
            f"{where}={tgt}: the run translates nothing, and is asked for no language; leave it out"
        )
    if not isinstance(tgt, str):
        raise UserError(f"{where} must be a language, but is {tgt!r:.80}")
    if tgt not in known:
        alone = "" if data.tags else " alone, since it was trained without data.target_tags"
        told = f"the run translates into {', '.join(known)}{alone}"
        raise UserError(f"{where}={tgt}: {told}{suggest(tgt, known)}")


def require_choice(tgt: str | None, data: DataConfig, way_out: str = "tgt=...", where: str = "") -> None:
    """Raise `UserError` where a run of `data` has to be told a language and is not; `where` says of what."""
    if tgt is None and has_choice(data):
        into = ", ".join(targets(data))
        raise UserError(f"{where}the run translates into {into}; say which one with {way_out}")


def require_known(tgt: str | None, domain: str | None, data: DataConfig) -> None:
    """Raise `UserError` unless a run of `data` knows the language and the domain of all lines."""
    if tgt is not None:
        require_target(tgt, data)
    if domain is not None:
        require_domain(domain, data)


def require_answerable(request: Request, tgt: str | None, data: DataConfig, name: str) -> None:
    """Raise `UserError`, which calls a line `name`, unless a run of `data` knows what the line asks for.

    `tgt` is the language of the lines that name none.
    """
    if request.context and not data.context:
        raise UserError(f"{name}: context: the run was trained without data.context; leave it out")
    if request.match.strip():
        require_matches(data, f"{name}: match")
    if request.domain:
        require_domain(request.domain, data, f"{name}: domain")
    if request.tgt:
        require_target(request.tgt, data, f"{name}: tgt")
        if len(targets(data)) > 1 and not data.tags:
            raise UserError(
                f"{name}: tgt={request.tgt}: the run was trained without data.target_tags, so that no line "
                "can ask it for a language; leave it out"
            )
    elif request.src.strip():
        require_choice(tgt, data, 'tgt=... for all lines, or "tgt" of this one', f"{name}: ")


def require_matches(data: DataConfig, where: str) -> None:
    """Raise `UserError` unless a run of `data` reads translations of similar sources; `where` names one."""
    if MATCH_MARK not in data.symbols:
        raise UserError(
            f"{where}: the run was not trained with translations of similar sources; leave it out, or train "
            "with data.augment=[{name: matches}]"
        )


def knows_terms(data: DataConfig) -> bool:
    """Return whether a run of `data` was trained with terms in its sources."""
    return set(TERM_MARKS) <= set(data.symbols)


def use_of_terms(use: GlossaryUse, data: DataConfig) -> GlossaryUse:
    """Return what a run of `data` does with terms by `use`."""
    if use is not GlossaryUse.auto:
        return use
    return GlossaryUse.both if knows_terms(data) else GlossaryUse.constrain


def require_enforceable(
    request: Request, use: GlossaryUse, search: DecodingConfig, data: DataConfig, name: str
) -> None:
    """Raise `UserError`, which calls a line `name`, unless `search` can enforce what the line asks for."""
    of_terms = bool(request.terms) and use_of_terms(use, data) is not GlossaryUse.annotate
    if (request.must or of_terms) and search.without_phrases:
        raise UserError(f"{name}: {search.without_phrases}")


def require_texts(line: str, place: str, data: DataConfig) -> None:
    """Raise `UserError` unless a line to classify is one text, or two with a TAB between.

    `place` says in the error where the line is.
    """
    require_text(line, place)
    is_pair, num_tabs = SEPARATOR in data.symbols, line.count("\t")
    if num_tabs != is_pair:
        what = "two texts with one TAB between" if is_pair else "one text, without a TAB"
        tabs = "a TAB" if num_tabs == 1 else f"{num_tabs} TABs" if num_tabs else "no TAB"
        raise UserError(f"{place} has {tabs}, but the run classifies {what}")


def in_context(line: str | Request, data: DataConfig) -> str | Request:
    """Return a line with as much of its context as the model knows in its source; a text as it is."""
    if isinstance(line, str):
        return line
    return dataclasses.replace(line, src=composed(line.src, line.context, data), context=[])


def of_domain(line: str | Request, domain: str | None, data: DataConfig) -> str | Request:
    """Return a line with the tag of its domain, or of `domain`, in front of its source."""
    source, own = (line, "") if isinstance(line, str) else (line.src, line.domain)
    wanted = own or domain
    if not wanted:
        return line
    (source,) = in_domain([source], domain_tag(wanted), data.domain_tags.values())
    return source if isinstance(line, str) else dataclasses.replace(line, src=source, domain="")


def into(line: str | Request, tgt: str, data: DataConfig) -> str | Request:
    """Return a line with the tag of its language, or of `tgt`, in front of its source."""
    source, own = (line, "") if isinstance(line, str) else (line.src, line.tgt)
    (source,) = tagged([source], data.tags[own or tgt])
    return source if isinstance(line, str) else dataclasses.replace(line, src=source, tgt="")
