"""Models of other programs, read as runs; and runs, written for other programs.

Knows the folders of other programs and what a run consists of; trains and translates nothing. The modules in
import order:

    pieces              SentencePiece models rewritten for the ids of another vocabulary.
    foreign             Folders of models as `transformers` writes them.
    imported            What an import consists of, and weights that are named as in BART.
    marian              Models of Marian and OPUS-MT.
    m2m100              Models of M2M-100 and NLLB-200.
    architectures       The table of the architectures that can be imported.
    importing           A foreign folder as a run directory.
"""
