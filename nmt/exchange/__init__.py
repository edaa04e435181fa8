"""Models of other programs as runs, and runs in the formats of other programs.

Knows runs and the formats of other programs; refuses to know the command line. The modules in import order:

    configs             The config of `nmt export`, and the marks of imported and exported runs; no torch.
    pieces              SentencePiece models rewritten for the ids of another vocabulary.
    pickled             Weights in pickled files of torch, read without unpickling anything.
    foreign             Folders of models as `transformers` writes them.
    imported            What an import consists of, and weights that are named as in BART.
    marian              Models of Marian and OPUS-MT.
    m2m100              Models of M2M-100 and NLLB-200.
    architectures       The table of the architectures that can be imported.
    importing           A foreign folder as a run directory.
    shared              What several formats need: refusals, ties, and tables of positions.
    to_ctranslate2      Models for CTranslate2, filled into its specification of a Transformer.
    to_huggingface      Models for `transformers`, in the class that computes the same.
    to_safetensors      The weights of any model under our names, and the facts to rebuild the model.
    to_run              A run directory with the model alone, for every verb that takes a run.
    usage               Short Python programs that use an exported folder.
    model_card          The card of an exported model.
    export              The table of formats, and the one function that writes a folder.
"""
