"""Training: the update, its objective, optimizer and schedule, checkpoints and tracking.

Knows models and batches; refuses to know text and BLEU. The modules and rooms in import order:

    lengths             Lengths in updates, epochs or target tokens; no torch.
    trainer_config      The keys of `trainer`, and the table of measures; no torch.
    update_size         The size of an update in words, and limits that are likely mistakes; no torch.
    tracking/           Numbers, lines and images of a training, to the terminal, files and trackers.
    checkpoint          Write atomically, verify, read, keep and average tensors.
    adapting/           Few weights that learn: freezing, LoRA, adapters.
    optimizers/         Optimizers, learning-rate schedules, the moving average of the weights.
    objectives/         Quantity that an update minimises, from model and batch.
    recomputation       Gradient checkpointing: layers computed again in backward.
    parallel_model      A model in training in one process, or shared by several with DDP or FSDP2.
    flops               Floating-point operations of training, and the utilisation of a GPU.
    statistics          Statistics of updates by name: sums on the device, and measures.
    train_state         Progress of a training, as checkpoints store it.
    epochs              The batches of a training in their order, from where its state is.
    memory              Batches that do not fit into memory, and what is tried instead.
    auto_batch          Number of tokens in a batch that suits the memory and the speed of the machine.
    saving              Checkpoints written by a thread while the training goes on.
    crowding            Cores that other programs use, told of where threads wait for them.
    agreement           What several processes agree on between updates, and whether they train one model.
    recovery            What follows a loss, a gradient or weights that are not finite.
    dropout_rates       The dropout rates of a model, which may change at certain updates.
    gradients           The gradients of an update: batch by batch, in parts where memory ends.
    trainer             The update; when to validate, save and stop.
    rehearsal           A training looked at: single updates, their loss, time and memory.
"""
