"""Train JoeyNMT on the batches of a job, with its own trainer, model, loss and optimizer.

Only what stands at the two ends is replaced: where its batches come from, and the checkpoint at the end. Its
trainer takes any setting of autocast, which is all that bf16 needs; its configuration offers float16 on CUDA
alone. It has no constant rate: here it decays, after each epoch, by a factor of 1.
"""

import tempfile
from pathlib import Path

import torch
from job import Clock, batches, read_job
from joeynmt.batch import Batch
from joeynmt.config import parse_train_args
from joeynmt.model import build_model
from joeynmt.training import TrainManager


class Ids:
    """What its model asks of a vocabulary; its own has the unknown piece first, the job has padding there."""

    def __init__(self, job):
        self.size = job["vocab_size"]
        self.pad_index, self.unk_index = job["pad_id"], job["unk_id"]
        self.bos_index, self.eos_index, self.sep_index = job["bos_id"], job["eos_id"], None
        self.specials, self.lang_tags = [], []

    def __len__(self):
        return self.size


def build(job):
    """The model with the sizes of the job."""
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
    """What the section `training` of its YAML would say."""
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
    """A batch as its loader makes it; `tgt` ends in EOS."""
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
    """Its data set, loader and sampler in one: an epoch of the updates of the job, and the clock."""

    def __init__(self, job, clock):
        self.job, self.clock = job, clock
        self.batch_sampler = self

    def make_iter(self, **_):
        """The loader."""
        return self

    def set_seed(self, seed):
        """Nothing is drawn here."""

    def __iter__(self):
        for src, tgt in batches(self.job):
            batch = batch_of(self.job, src, tgt)
            yield batch
            # The trainer comes back for more when the update is over.
            if self.clock.update(batch.ntokens):
                return


def main():
    """Train, measure, answer."""
    job = read_job()
    torch.set_num_threads(job["threads"])
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
        data = Data(job, clock)
        trainer.train_and_validate(data, data)
    clock.answer(parameters=sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    main()
