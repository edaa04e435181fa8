"""Train fairseq on the batches of a job, with its own trainer, model, criterion and optimizer.

The ids of the special pieces are those of fairseq's dictionary, and its decoder begins with EOS. In bf16,
which it has for CUDA alone, autocast is wrapped around its criterion.
"""

import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from job import Clock, batches, parallel, read_job


def arguments(job, folder):
    """Return the arguments of `fairseq-train`."""
    for side in ("src", "tgt"):
        lines = "".join(f"{i} 1\n" for i in range(4, job["vocab_size"]))
        Path(folder, f"dict.{side}.txt").write_text(lines, encoding="utf-8")
    sizes = job["sizes"]
    values = {
        "arch": "transformer",
        "source-lang": "src",
        "target-lang": "tgt",
        "encoder-layers": sizes["encoder_layers"],
        "decoder-layers": sizes["decoder_layers"],
        **{f"{side}-embed-dim": sizes["d_model"] for side in ("encoder", "decoder")},
        **{f"{side}-ffn-embed-dim": sizes["d_ff"] for side in ("encoder", "decoder")},
        **{f"{side}-attention-heads": sizes["num_heads"] for side in ("encoder", "decoder")},
        **dict.fromkeys(("dropout", "attention-dropout", "activation-dropout"), job["dropout"]),
        "criterion": "label_smoothed_cross_entropy",
        "label-smoothing": job["label_smoothing"],
        "optimizer": "adam",
        "adam-betas": "(0.9, 0.98)",
        "adam-eps": job["adam_eps"],
        "lr": job["learning_rate"],
        "lr-scheduler": "fixed",
        "clip-norm": 1.0,
        "max-tokens": 4096,
    }
    switches = ("encoder-normalize-before", "decoder-normalize-before", "share-all-embeddings", "cpu")
    given = [x for key, value in values.items() for x in (f"--{key}", str(value))]
    return [str(folder), *given, *(f"--{name}" for name in switches)]


def samples(job):
    """Yield batches as the collater of fairseq makes them, with the number of target tokens."""
    ids = np.arange(job["vocab_size"])
    for key, theirs in (("bos_id", 0), ("pad_id", 1), ("eos_id", 2), ("unk_id", 3)):
        ids[job[key]] = theirs
    for src, tgt in batches(job):
        lengths, number = (src != job["pad_id"]).sum(1), int((tgt != job["pad_id"]).sum())
        src, tgt = torch.from_numpy(ids[src]), torch.from_numpy(ids[tgt])
        inputs = {"src_tokens": src, "src_lengths": torch.from_numpy(lengths)}
        inputs["prev_output_tokens"] = torch.cat([torch.full_like(tgt[:, :1], 2), tgt[:, :-1]], dim=1)
        numbers = {"id": torch.arange(len(src)), "nsentences": len(src), "ntokens": number}
        yield {"net_input": inputs, "target": tgt, **numbers}, number


def main():
    """Train on the job and print the result."""
    job = read_job()
    torch.set_num_threads(parallel(job)[1])
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        cfg = options.parse_args_and_arch(options.get_training_parser(), arguments(job, folder))
        cfg = convert_namespace_to_omegaconf(cfg)
        task = tasks.setup_task(cfg.task)
        model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    trainer = Trainer(cfg, task, model, criterion)
    losses, forward = [], criterion.forward

    def in_precision(*arguments, **named):
        bf16 = job["precision"] == "bf16"
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            loss, *rest = forward(*arguments, **named)
        losses.append(loss.detach())
        return loss, *rest

    criterion.forward = in_precision
    clock = Clock(job)
    for sample, number in samples(job):
        trainer.train_step([sample])
        if clock.update(number, losses.pop() / number):
            break
    # Its encoder has copies of its weights, for inference alone.
    clock.answer(parameters=sum(p.numel() for p in model.parameters() if p.grad is not None))


if __name__ == "__main__":
    main()
