"""Exchange: models of this project in the formats of other programs.

Knows runs and formats; refuses to know the command line. The modules in import order:

    settings            The config of `nmt export`.
    shared              What several formats need: refusals, pieces, and tables of positions.
    to_ctranslate2      Models for CTranslate2, filled into its specification of a Transformer.
    to_huggingface      Models for `transformers`, in the class that computes the same.
    to_safetensors      The weights of any model under our names, and the facts to rebuild the model.
    usage               Short Python programs that use an exported folder.
    model_card          The card of an exported model.
    export              The table of formats, and the one function that writes a folder.
"""
