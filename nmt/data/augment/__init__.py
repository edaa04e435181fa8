"""Training pairs that are changed or made up.

Knows pairs, as text and as ids; knows no file. The modules in import order:

    lexicon             Word translation probabilities, and the alignment of the words of a pair.
    translation_memory  Pairs of sentences, of which the one most like a line is found.
    augmentation        Modified copies of sentence pairs, drawn anew for each epoch.
    word_noise          Words of a source left out, masked or moved.
    damage              Made-up misaligned pairs from true ones, with labels.
    matches             Translations of similar sources, offered behind sources.
    terms               Terms offered inside of sources: aligned words in training, glossaries later.
"""
