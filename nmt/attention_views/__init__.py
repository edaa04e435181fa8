"""Attention views: pictures of attention.

Knows weights over pieces and words; refuses to know how a model was trained. The modules in import order:

    alignment           From attention weights over pieces to alignments of words.
    maps                What a model attends to, sentence by sentence: tokens and weights.
    heatmap             Heat maps of attention weights as images.
    page                Attention weights as one HTML page, made from page.html.
    views               What `nmt attention` writes: page, images, soft and hard alignments.
"""
