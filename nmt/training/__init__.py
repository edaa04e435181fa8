"""Training: the update, its objective, optimizer and schedule, checkpoints and tracking.

Knows models and batches; refuses to know text and BLEU. The modules in import order:

    lengths             Lengths in updates, epochs or target tokens; no torch.
    trainer_config      The keys of `trainer`, and the table of measures; no torch.
    update_size         The size of an update in words, and limits that are likely mistakes; no torch.
    optimizer_configs   The keys of each optimizer, and their table; no torch.
    schedule_configs    The keys of each schedule, and their table; no torch.
    objective_configs   The keys of each objective, and their table; no torch.
    tracking_config     The keys of `tracking`, and the table of sinks; no torch.
    adaptation_table    The configs of ways to train few weights, and their table; no torch.
    status_line         Progress, scores and time left of a training, in one line of words.
    display             Display of a training on stderr.
    tracking            One `log(step, values)` to every sink: display, train.log, metrics.jsonl, TensorBoard.
    trackers            Weights & Biases, MLflow and trackio: what is sent to them, by a thread.
    checkpoint          Write atomically, verify, read, keep and average tensors.
    freezing            Weights that do not learn, by patterns of their names.
    adaptation          Few weights that learn beside those of another run.
    lora                LoRA: products of two thin matrices beside matrices that stay as they are.
    adapters            Narrow residual blocks behind the layers of a stack.
    muon                Momentum of matrices, orthogonalised, beside Adam for everything else.
    optimizer           Optimizers and their parameter groups.
    schedules           Learning-rate schedules: pure functions of the step.
    objective           Quantity that an update minimises; model and objective as one module.
    consistency         R-Drop and SimCut: two passes that should agree.
    distillation        The predictions of other runs as what a model learns.
    guided_alignment    Attention to the words that an alignment of the pair names.
    minimum_risk        The expected cost of sampled translations.
    __init__            The one function that builds an objective.
    ema                 Exponential moving average of the weights.
    adamw_8bit          AdamW whose moments have 8 bits.
    schedule_free       AdamW whose average of all iterates takes the place of a decay.
    recomputation       Gradient checkpointing: layers computed again in backward.
    parallel_model      A model in training in one process, or shared by several with DDP or FSDP2.
    flops               Floating-point operations of training, and the utilisation of a GPU.
    statistics          Statistics of updates by name: sums on the device, and measures.
    train_state         Progress of a training, as checkpoints store it.
    memory              Batches that do not fit into memory, and what is tried instead.
    auto_batch          Number of tokens in a batch that suits the memory and the speed of the machine.
    saving              Checkpoints written by a thread while the training goes on.
    crowding            Cores that other programs use, told of where threads wait for them.
    agreement           What several processes agree on between updates, and whether they train one model.
    recovery            What follows a loss, a gradient or weights that are not finite.
    changes             Values that change at certain updates: dropout and accumulation.
    gradients           The gradients of an update: batch by batch, in parts where memory ends.
    trainer             The update; when to validate, save and stop.
    rehearsal           A training looked at: single updates, their loss, time and memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nmt.loading import loaded
from nmt.training.objective_configs import OBJECTIVES, ObjectiveConfig

if TYPE_CHECKING:
    from nmt.training.objective import Objective, OfText, OpenModel


def build_objective(cfg: ObjectiveConfig, open_model: OpenModel, of_text: OfText | None = None) -> Objective:
    """Return the objective that `cfg` describes; `open_model` opens the model of another run.

    `of_text` is for an objective that `needs_text`.
    """
    objective: Objective = loaded(OBJECTIVES[cfg.name][1])(cfg, open_model)
    objective.of_text = of_text
    return objective
