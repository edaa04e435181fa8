"""Data: corpora -> sentence pairs -> ids -> batches.

Knows text and tokens; refuses to know a model. The modules in import order:

    pairs               Sentence pairs, and what every data config states.
    lines               The lines of text files, plain or compressed, block by block.
    files               Pairs from files: parallel plain text, TSV and JSONL.
    hub                 Pairs from Hugging Face datasets: on the hub, or in a folder of the same layout.
    mixture             How often each of several corpora is drawn from; the tags of target languages.
    sources             The table of sources; one split of the one that the config names.
    filters             What is dropped of training pairs, with a report.
    special_ids         The ids that stand for no text, and who adds them.
    tokenizer_training  Train SentencePiece, deterministically; the config of a tokenizer.
    encoded_pairs       The ids of sentences: flat arrays in memory, or files read as batches need them.
    tokenizer           Text to ids and ids to text.
    encode              From text to ids, chunk by chunk, cached by content.
    streaming           Training pairs that are read while training goes on.
    training_split      Prepares what a run trains on: text, tokenizer and the pairs of each epoch.
    examples            What each task trains on: sentence pairs, or windows of one long text.
    batching            Encoded pairs to token-budget batches; the plan of an epoch is a pure function.
"""
