"""Runs: a run directory, and what is opened from it.

Knows files and models together; refuses to know the command line. The modules in import order:

    task                What differs between tasks, as an abstract class.
    translation         The task of translation.
    language_model      The task of language modelling.
    tasks               The table of tasks, and the evaluation of a model by the code of its task.
    directory           A run directory: its files, its lock, and which config it belongs to.
    opened              Opening a finished run: its model, its checkpoints, the texts it is scored on.
"""
