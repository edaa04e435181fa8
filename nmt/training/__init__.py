"""Training: the update, its optimizer and schedule, checkpoints and tracking.

Knows models and batches; refuses to know text and BLEU. The modules in import order:

    status_line         How far a training is and what its model does, in one line of words.
    display             What a training shows on stderr.
    tracking            One `log(step, values)` to every sink: display, train.log, metrics.jsonl, TensorBoard.
    muon                Momentum of matrices, orthogonalised, beside Adam for everything else.
    optimizer           Optimizers, and learning-rate schedules as pure functions of the step.
    checkpoint          Write atomically, verify, read, keep and average tensors.
    parallel_model      Forward pass and loss as one module; DDP and FSDP2.
    flops               Floating-point operations of training, and the utilisation of a GPU.
    train_state         How far a training has come, and what its updates measure.
    trainer             The update; when to validate, save and stop.
"""
