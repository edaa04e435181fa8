"""Data: corpora -> sentence pairs -> ids -> batches.

Knows text and tokens; refuses to know a model. The modules in import order:

    rows                Ordered lists of groups in a config: each names a row of a table.
    filter_table        The table of filters, which judge training pairs.
    fixer_table         The table of fixers, which repair the text of training pairs.
    modifiers           The table of modifiers, which change the text of training pairs.
    parallel_text       Sentence pairs as text, and streams of them, chunk by chunk.
    configs             The config fields that all sources share, and those of sources that read columns.
    workers             Processes that work through a corpus together.
    documents           Previous sentences in front of each pair, within documents.
    sentences           Text to sentences, by rules; too long ones to parts.
    compression         Compressed files, told by their first bytes.
    lines               The lines of text files, plain or compressed, block by block.
    scripts             The scripts of letters and of languages.
    words               Where the words of a text begin and end, in any script.
    fixers              The fixers of the table: what each changes in a line, or in both lines of a pair.
    side_files          The files that a path means, and the way out where one is not there.
    tmx                 The units of translation memories, by language.
    files               Pairs from files: parallel plain text, TSV, CSV, JSONL and TMX.
    hub                 Pairs from Hugging Face datasets: on the hub, or in a folder of the same layout.
    labels              Labelled text from files and from datasets.
    mixture             The shares of several corpora in an epoch; tags in front of sources.
    stages              The stages of a mixture: its weights until some update.
    draws               Random numbers that are hashes of a key and a counter.
    encoded_pairs       The ids of sentences: flat arrays in memory, or in files read batch by batch.
    lexicon             Word translation probabilities, and the alignment of the words of a pair.
    translation_memory  Pairs of sentences, of which the one most like a line is found.
    augmentation        Modified copies of sentence pairs, drawn anew for each epoch.
    augmented           Augmented sets: the pairs of another corpus, each modified, to score on.
    word_noise          Words of a source left out, masked or moved.
    damage              Made-up misaligned pairs from true ones, with labels.
    testsets            Test sets of sacreBLEU by name.
    bundled_data        Corpora that need nothing from outside: those of the package, and none.
    sources             The table of sources: demo, files, hub, text, labels, mixture, alignment and others.
    swapped             Splits whose sides are the other way round than those of the training pairs.
    excerpt             The first pairs of each split as files of their own.
    filters             The limits of training pairs, ahead of data.filters, and the report of all filters.
    pair_filters        The filters of the table: what each measures and accepts.
    opuscleaner         The steps of a file of OpusCleaner as filters of the table.
    measuring           What filters measure, block by block, in several processes, cached.
    filtering           The filters of a corpus run once, and what they kept, cached.
    repairs             What fixers change of a corpus: an account, cached.
    filtered_files      What filters kept, and what they dropped, as files.
    census              The counts of a training split: pairs, words, characters.
    inline_tags         Inline tags taken out of a line, and put into its translation by an alignment.
    special_ids         The ids that stand for no text.
    source_factors      What a piece of the source has besides its spelling: case, place in its word.
    casing              Inline case: words in lower case, and marks for their capitals.
    tokenizer_training  Train SentencePiece, deterministically; the config of a tokenizer.
    segmenter           SentencePiece models as messages: read, told apart, and given our special ids.
    piece_models        The models that split lines into pieces, behind one contract.
    ready_tokenizers    Tokenizers that are ready before the training, given our special ids.
    matches             Translations of similar sources, offered behind sources.
    terms               Terms offered inside of sources: aligned words in training, glossaries later.
    blocks              The epochs of large corpora, part by part, from blocks that are read in sequence.
    subword_sampling    Sampled segmentations, a pure function of text, seed and line number.
    word_vectors        Vectors of words from the text files of word2vec, GloVe and fastText.
    label_set           The labels of a classifier, as the target pieces of a tokenizer.
    tokenizer           Text to ids and ids to text.
    shortlist           The target pieces that each source piece may become.
    adaptation          A tokenizer for new text, made from that of a trained model.
    encode              Text to ids, chunk by chunk, cached by content.
    shards              A large corpus encoded shard by shard, by several processes, in random order.
    streaming           Training pairs that are read during training.
    training_split      Prepare the training data of a run: text, tokenizer and the pairs of each epoch.
    examples            The training examples of each task: sentence pairs, or windows of one long text.
    batching            Encoded pairs to token-budget batches; the plan of an epoch is a pure function.
"""
