"""Scores of translations against references, and of labels.

Refuses to know models and how text was found. The modules in import order:

    configs             The configs of metrics; no torch.
    comet_script        The part of COMET that another Python runs; imports nothing of this package.
    comet               COMET, computed by another Python.
    label_scores        Scores of labels; no text.
    scoring             Scores of the translations of a split, one row each.
    utility             Sentence chrF and BLEU between all texts of a sentence at once.
    confidence          The agreement of the confidence of a model with the quality of its translations.
"""
