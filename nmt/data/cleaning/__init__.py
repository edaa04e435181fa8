"""Cleaning: which pairs of a corpus are kept, and what is repaired in them, each with an account.

Knows pairs as text; knows no tokenizer. The modules in import order:

    filters             The limits of training pairs, ahead of data.filters, and the report of all filters.
    pair_filters        The filters of the table: what each measures and accepts.
    opuscleaner         The steps of a file of OpusCleaner as filters of the table.
    measuring           What filters measure, block by block, in several processes, cached.
    filtering           The filters of a corpus run once, and what they kept, cached.
    repairs             What fixers change of a corpus: an account, cached.
    filtered_files      What filters kept, and what they dropped, as files.
    census              The counts of a training split: pairs, words, characters.
"""
