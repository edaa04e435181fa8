"""Ten English-French sentence pairs that share their words: what a tutorial trains on, in seconds.

All splits are these ten pairs, so that nothing is measured but whether a model can learn them by heart. They
are lower-case and without punctuation, and need no apostrophe: a word-level model, which never sees either,
can then match them exactly, and 100 BLEU means that it does.
"""

from __future__ import annotations

PAIRS = [
    ("the cat sleeps in the house", "le chat dort dans la maison"),
    ("the dog sleeps in the garden", "le chien dort dans le jardin"),
    ("my mother sees the cat", "ma mère voit le chat"),
    ("my brother sees the dog", "mon frère voit le chien"),
    ("the little dog eats an apple", "le petit chien mange une pomme"),
    ("my sister eats a red apple", "ma sœur mange une pomme rouge"),
    ("my father drinks tea in the evening", "mon père boit du thé le soir"),
    ("my mother drinks coffee in the morning", "ma mère boit du café le matin"),
    ("it is cold in winter", "il fait froid en hiver"),
    ("it is warm in summer", "il fait chaud en été"),
]
