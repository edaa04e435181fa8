"""Runs: a run directory, and what is opened from it.

Knows files and models together; refuses to know the command line. The modules in import order:

    tasks               What a model learns: the code of translation and that of language modelling.
    directory           A run directory: its files, its lock, and which config it belongs to.
    opened              Opening a finished run: its model, its checkpoints, the texts it is scored on.
"""
