"""Verbs: one file each.

Knows everything, but wires only: gives every component its part of the config. The modules in import order:

    translation_job     A large file to translate: its blocks, its finished parts, the output.
    translate_file      Workers that translate a large file.
    train               The wiring of train.
"""
