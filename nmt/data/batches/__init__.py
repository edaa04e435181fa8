"""Batches: sentence pairs -> ids -> the batches of each epoch.

Knows how the training data of a run is prepared; refuses to know a model. The modules in import order:

    encode              Text to ids, chunk by chunk, cached by content.
    shards              A large corpus encoded shard by shard, by several processes, in random order.
    blocks              The epochs of large corpora, part by part, from blocks that are read in sequence.
    streaming           Training pairs that are read during training.
    training_split      Prepare the training data of a run: text, tokenizer and the pairs of each epoch.
    examples            The training examples of each task: sentence pairs, or windows of one long text.
    batching            Encoded pairs to token-budget batches; the plan of an epoch is a pure function.
"""
