"""Reading: corpora -> sentence pairs.

Knows formats, columns and places of corpora; judges no pair. The modules in import order:

    compression         Compressed files, told by their first bytes.
    lines               The lines of text files, plain or compressed, block by block.
    side_files          The files that a path means, and the way out where one is not there.
    tmx                 The units of translation memories, by language.
    files               Pairs from files: parallel plain text, TSV, CSV, JSONL and TMX.
    hub                 Pairs from Hugging Face datasets: on the hub, or in a folder of the same layout.
    labels              Labelled text from files and from datasets.
    mixture             The shares of several corpora in an epoch; tags in front of sources.
    stages              The stages of a mixture: its weights until some update.
    augmented           Augmented sets: the pairs of another corpus, each modified, to score on.
    testsets            Test sets of sacreBLEU by name.
    bundled_data        Corpora that need nothing from outside: those of the package, and none.
    sources             The table of sources: demo, files, hub, text, labels, mixture, alignment and others.
    swapped             Splits whose sides are the other way round than those of the training pairs.
    excerpt             The first pairs of each split as files of their own.
"""
