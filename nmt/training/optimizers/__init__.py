"""Optimizers and what belongs to them: learning-rate schedules and the average of the weights.

Knows weights, gradients and steps; knows no loss. The modules in import order:

    optimizer_configs   The keys of each optimizer, and their table; no torch.
    schedule_configs    The keys of each schedule, and their table; no torch.
    muon                Momentum of matrices, orthogonalised, beside Adam for everything else.
    optimizer           Optimizers and their parameter groups.
    schedules           Learning-rate schedules: pure functions of the step.
    ema                 Exponential moving average of the weights.
    adamw_8bit          AdamW whose moments have 8 bits.
    schedule_free       AdamW whose average of all iterates takes the place of a decay.
"""
