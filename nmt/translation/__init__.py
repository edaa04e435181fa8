"""Translation: lines in; translations, scores or labels out. Text around the search of `nmt.decoding`.

Refuses to know runs, and all files but those of terms, memories and allowed words.
The modules in import order:

    requests            What is asked of the translation of a line; text to `Wish`.
    offers              What sources are offered: terms of a glossary, matches of a translation memory.
    allowed             The tokens that the translation of each line may have.
    translate           Lines in, translations out, order kept.
    segments            Lines as parts that are translated: sentences of long lines, sentences behind context.
    score               Pairs of lines in, log probabilities out, order kept.
    classify            Lines in, labels and their probabilities out, order kept.
    evaluate            Loss, and metrics with their signatures, on one split.
    reranking           The choice among candidates by weighted features, and the weights.
"""
