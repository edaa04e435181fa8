"""Tokens: text -> ids, and back.

Knows lines and vocabularies; knows no source of pairs. The modules in import order:

    tokenizer_training  Train SentencePiece, deterministically; the config of a tokenizer.
    segmenter           SentencePiece models as messages: read, told apart, and given our special ids.
    piece_models        The models that split lines into pieces, behind one contract.
    ready_tokenizers    Tokenizers that are ready before the training, given our special ids.
    subword_sampling    Sampled segmentations, a pure function of text, seed and line number.
    label_set           The labels of a classifier, as the target pieces of a tokenizer.
    word_vectors        Vectors of words from the text files of word2vec, GloVe and fastText.
    tokenizer           Text to ids and ids to text.
    shortlist           The target pieces that each source piece may become.
    adaptation          A tokenizer for new text, made from that of a trained model.
"""
