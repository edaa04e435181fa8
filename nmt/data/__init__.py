"""Data: corpora -> sentence pairs -> ids -> batches.

Knows text and tokens; refuses to know a model. The modules and rooms in import order:

    rows                Ordered lists of groups in a config: each names a row of a table.
    filter_table        The table of filters, which judge training pairs.
    fixer_table         The table of fixers, which repair the text of training pairs.
    modifiers           The table of modifiers, which change the text of training pairs.
    parallel_text       Sentence pairs as text, and streams of them, chunk by chunk.
    configs             The config fields that all sources share, and those of sources that read columns.
    workers             Processes that work through a corpus together.
    documents           Previous sentences in front of each pair, within documents.
    encoded_pairs       The ids of sentences: flat arrays in memory, or in files read batch by batch.
    special_ids         The ids that stand for no text.
    draws               Random numbers that are hashes of a key and a counter.
    text/               What is done to a line by rules: words, sentences, case, tags, repairs.
    augment/            Training pairs changed or made up: noise, terms, matches, damage; the lexicon for it.
    reading/            Corpora to pairs: files, the hub, mixtures, and the table of all sources.
    cleaning/           What is kept of a corpus, what is repaired in it, and the account of both.
    tokens/             Text to ids and back: training a tokenizer, or taking one that is ready.
    batches/            Pairs to ids to batches: encoded, cached, streamed, and planned epoch by epoch.
"""
