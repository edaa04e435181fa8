"""Sweeps: many trials of one verb, whatever happens to single ones, and the table at their end.

Knows trials as composed configs, their run directories and their processes; knows no model. The modules in
import order:

    records             What is known of the trials: sweep.json and sweep.csv.
    table               The table at the end, ranked on validation.
    ranking             What trials are ranked by, and whether they have it.
    attempts            One attempt at a trial, in one process or in several that compute together.
    processes           Trials on this machine, each in a process of its own.
    slurm               Trials as jobs of Slurm.
    search              The trials of a search, chosen one by one with Optuna.
    study               The study of a search, as its sweep asks for it.
    drive               A sweep from its first trial to its table.
"""
