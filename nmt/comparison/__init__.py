"""Comparison: what run directories tell about trainings, side by side.

Knows files of runs and scores of translations; refuses to know a model: no weights are loaded, so that
hundreds of runs are listed in a second. Text of a run may be a stranger's, and never becomes markup.
The modules in import order:

    configs             The keys of the verbs of this room.
    record              What the files of one run tell, without its weights.
    differences         Keys that differ among runs: of configs and of environments.
    listing             The table of `nmt runs`.
    translations        The translations that are compared, and whether they can be.
    paired_tests        Intervals and tests of the metrics that sacreBLEU does not have.
    significance        Scores with intervals, and tests of their differences.
    seed_tests          Tests of systems that are several runs each, over sentences and seeds.
    breakdown           Scores by kind of sentence, and the sentences that differ most.
    remarks             What is odd about translations, said beside their scores.
    comparing           All facts of a comparison.
    summary             A comparison as text for a terminal.
    page                A comparison as one HTML page, made from page.html.
    reproduction        A training and its repetition: what agrees and what differs.
"""
