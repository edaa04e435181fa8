"""Layers: blocks that models share.

Knows tensors and shapes; refuses to know a token id, a text or a model family. The modules in import order:

    choices             The choices that layers offer, by name; no torch.
    blocks              Dropout, linear maps, feed-forward, norms, residual.
    half                A copy of a model for search that is 16-bit throughout.
    low_precision       A copy of a model for search that multiplies numbers of 16 or 8 bits.
    positions           Kinds of positions, and those added to embeddings.
    relative_positions  Self-attention that knows how far a key is from a query.
    attention           Multi-head attention, and how to see its weights.
    summaries           The SSRU and average attention, in place of the self-attention of a decoder.
    loss                Summed label-smoothed negative log-likelihood.
"""
