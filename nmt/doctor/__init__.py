"""Doctor: a look at the environment and at a corpus before anyone trains on it.

Knows text, files and machines; refuses to know a model, and changes nothing. Text of a corpus may be a
stranger's, and never becomes markup or a command of a terminal. The modules in import order:

    configs             The keys of the verb of this room.
    hashes              64-bit hashes of lines, and what repeats among them in bounded memory.
    characters          Tables over all code points, and facts of each line.
    findings            What is wrong, how bad it is, what to do, and examples.
    alignment           Whether the lines of the two sides belong together, judged by their lengths.
    similar             Pairs of a sample that are nearly equal, found by min-hash.
    language            The language of the lines of a sample.
    corpus              One pass over each split of a corpus, and its counts.
    judging             The findings that counts of a corpus give.
    environment         Facts of the machine and of what is installed, and findings about them.
    summary             A report as text for a terminal.
    page                A report as one HTML page, made from page.html.
"""
