"""Verbs: one file each.

Knows everything, but wires only: gives every component its part of the config. The modules in import order:

    translate_file      Translate a large file with several workers, block by block.
    train               The wiring of train.
"""
