"""Data: corpora -> sentence pairs -> ids -> batches.

Knows text and tokens; refuses to know a model. The modules in import order:

    pairs               Sentence pairs, and what every data config states.
    lines               The lines of text files, plain or compressed, block by block.
    files               Pairs from files: parallel plain text, TSV and JSONL.
    hub                 Pairs from Hugging Face datasets: on the hub, or in a folder of the same layout.
    mixture             Several corpora at once: their shares, and the tags of target languages.
    sources             The table of sources; one split of the one that the config names; the filter.
    preparation         A line before it is tokenised: lower-cased, without punctuation.
    tokenizer_training  Train SentencePiece, deterministically; the config of a tokenizer.
    tokenizer           Text to ids and ids to text.
    encoded_pairs       The ids of sentences: flat arrays in memory, or files read as batches need them.
    streaming           Training pairs that are read while training goes on.
    training_split      The training split as a stream, what is known about it, and its tokenizer.
    encode              From text to ids, chunk by chunk, cached by content.
    batching            Encoded pairs to token-budget batches; the plan of an epoch is a pure function.
"""
