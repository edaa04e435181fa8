"""Train JoeyNMT on the batches of a job, with its own trainer, model, loss and optimizer.

Only the source of the batches and the checkpoint at the end are replaced. The trainer takes any setting of
autocast, which is all that bf16 needs; the configuration offers float16 on CUDA alone. There is no constant
learning rate: here the rate decays, after each epoch, by a factor of 1.
"""

import math
import tempfile
from pathlib import Path

import torch
from job import Clock, batches, parallel, read_job
from joeynmt.batch import Batch
from joeynmt.config import parse_train_args
from joeynmt.model import build_model
from joeynmt.training import TrainManager


class Ids:
    """A vocabulary as the model needs it; JoeyNMT's own has the unknown piece first, the job has padding."""

    def __init__(self, job):
        self.size = job["vocab_size"]
        self.pad_index, self.unk_index = job["pad_id"], job["unk_id"]
        self.bos_index, self.eos_index, self.sep_index = job["bos_id"], job["eos_id"], None
        self.specials, self.lang_tags = [], []

    def __len__(self):
        return self.size


def build(job):
    """Return a model with the sizes of the job."""
    sizes, ids = job["sizes"], Ids(job)
    stack = {
        "type": "transformer",
        "embeddings": {"embedding_dim": sizes["d_model"], "scale": True},
        "hidden_size": sizes["d_model"],
        "ff_size": sizes["d_ff"],
        "num_heads": sizes["num_heads"],
        "dropout": job["dropout"],
        "layer_norm": "pre",
        "activation": "relu",
    }
    stacks = {side: {**stack, "num_layers": sizes[f"{side}_layers"]} for side in ("encoder", "decoder")}
    return build_model({**stacks, "tied_embeddings": True, "tied_softmax": True}, ids, ids)


def settings(job):
    """Return the section `training` of JoeyNMT's YAML."""
    never = 10**9
    return parse_train_args(
        {
            "normalization": "tokens",
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "learning_rate": job["learning_rate"],
            "scheduling": "exponential",
            "decrease_factor": 1.0,
            "clip_grad_norm": 1.0,
            "batch_type": "token",
            "batch_size": 4096,
            "epochs": 1,
            "logging_freq": never,
            "validation_freq": never,
        }
    )


def batch_of(job, src, tgt=None):
    """Return a batch as the loader of JoeyNMT makes it; `tgt` ends in EOS."""
    src = torch.from_numpy(src)
    if tgt is not None:
        tgt = torch.from_numpy(tgt)
        tgt = torch.cat([torch.full_like(tgt[:, :1], job["bos_id"]), tgt], dim=1)
    return Batch(
        src=src,
        src_length=(src != job["pad_id"]).sum(1),
        src_prompt_mask=None,
        trg=tgt,
        trg_prompt_mask=None,
        indices=torch.arange(len(src)),
        device=torch.device("cpu"),
        pad_index=job["pad_id"],
        eos_index=job["eos_id"],
        is_train=tgt is not None,
    )


class Data:
    """Data set, loader and sampler of JoeyNMT in one: an epoch of the updates of the job, and the clock."""

    def __init__(self, job, clock):
        self.job, self.clock, self.losses = job, clock, []
        self.batch_sampler = self

    def make_iter(self, **_):
        """Return the loader."""
        return self

    def set_seed(self, seed):
        """Ignore the seed: nothing is sampled here."""

    def __iter__(self):
        for src, tgt in batches(self.job):
            batch = batch_of(self.job, src, tgt)
            yield batch
            # The trainer asks for the next batch when the update is over.
            if self.clock.update(batch.ntokens, self.losses.pop()):
                return


def entropy(job):
    """Return the entropy of a smoothed target: what a cross-entropy has more than JoeyNMT's divergence."""
    smoothing, size = job["label_smoothing"], job["vocab_size"]
    others = smoothing * math.log(smoothing / (size - 2))
    return -(1.0 - smoothing) * math.log(1.0 - smoothing) - others


def main():
    """Train on the job and print the result."""
    job = read_job()
    torch.set_num_threads(parallel(job)[1])
    torch.manual_seed(1)
    model, clock = build(job), Clock(job)
    model.loss_function = "crossentropy", job["label_smoothing"]
    TrainManager._save_checkpoint = lambda *_: None
    with tempfile.TemporaryDirectory() as folder:
        trainer = TrainManager(
            rank=0,
            model=model,
            model_dir=Path(folder),
            device=torch.device("cpu"),
            autocast={
                "device_type": "cpu",
                "dtype": torch.bfloat16,
                "enabled": job["precision"] == "bf16",
            },
            train_args=settings(job),
        )
        data, step = Data(job, clock), trainer._train_step

        def step_with_loss(batch):
            loss, correct = step(batch)
            data.losses.append(loss + entropy(job))
            return loss, correct

        trainer._train_step = step_with_loss
        trainer.train_and_validate(data, data)
    clock.answer(parameters=sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    main()
