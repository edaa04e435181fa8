"""Tracking: what a training reports, and where it goes.

Knows values by name and sinks; knows no model. The modules in import order:

    configs             The keys of `tracking`, and the table of sinks; no torch.
    status_line         Progress, scores and time left of a training, in one line of words.
    display             Display of a training on stderr.
    sinks               One `log(step, values)` to every sink: display, train.log, metrics.jsonl, TensorBoard.
    remote_sinks        Weights & Biases, MLflow and trackio: what is sent to them, by a thread.
"""
