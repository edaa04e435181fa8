"""Attention views: pictures of attention.

Knows weights over pieces and words; refuses to know how a model was trained. The modules in import order:

    configs             The config of the files; no torch.
    alignment           From attention weights over pieces to alignments of words.
    maps                Attention maps of a model, sentence by sentence: tokens and weights.
    heatmap             Heat maps of attention weights as images.
    page                Attention weights as one HTML page, made from page.html.
    views               The files of `nmt attention`: page, images, soft and hard alignments.
"""
