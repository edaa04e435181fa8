"""Text: what is done to a line by rules.

Knows characters, words and scripts; knows no file. The modules in import order:

    words               Where the words of a text begin and end, in any script.
    scripts             The scripts of letters and of languages.
    sentences           Text to sentences, by rules; too long ones to parts.
    casing              Inline case: words in lower case, and marks for their capitals.
    source_factors      What a piece of the source has besides its spelling: case, place in its word.
    inline_tags         Inline tags taken out of a line, and put into its translation by an alignment.
    fixers              The fixers of the table: what each changes in a line, or in both lines of a pair.
"""
