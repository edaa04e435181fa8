"""Train Eole on the batches of a job, with its own trainer, model, loss and optimizer.

Only the source of the batches and the end of an update are replaced. On CPU Eole offers no bf16; there
autocast is wrapped around its forward pass, as Eole does itself on CUDA.
"""

import tempfile
from contextlib import nullcontext

import torch
from job import Clock, batches, corpus_files, leave_out, parallel, read_job

leave_out("torchaudio", "torchaudio.transforms")  # for speech models alone, and tied to one torch
from eole import train_single  # noqa: E402
from eole.config.run import TrainConfig  # noqa: E402
from eole.trainer import BatchProcessor, Trainer  # noqa: E402


class Done(Exception):
    """The last update of the job is over."""


def config(job, folder):
    """Return the config that `eole train` would read from YAML."""
    vocabulary, text = corpus_files(job, folder, ["<blank>", "<unk>", "<s>", "</s>"])
    sizes = job["sizes"]
    return TrainConfig(
        src_vocab=vocabulary,
        tgt_vocab=vocabulary,
        share_vocab=True,
        save_data=folder,
        data={"corpus": {"path_src": text, "path_tgt": text, "transforms": []}},
        model={
            "architecture": "transformer",
            "hidden_size": sizes["d_model"],
            "heads": sizes["num_heads"],
            "transformer_ff": sizes["d_ff"],
            "encoder": {"layers": sizes["encoder_layers"]},
            "decoder": {"layers": sizes["decoder_layers"]},
            "embeddings": {"word_vec_size": sizes["d_model"], "position_encoding": True},
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "add_qkvbias": True,
            "add_ffnbias": True,
            "generator_bias": False,
            "mlp_activation_fn": "relu",
            "layer_norm": "standard",
        },
        training={
            "world_size": 0,
            "gpu_ranks": [],
            "num_workers": 0,
            "compute_dtype": "fp32",
            "param_init_method": "xavier_uniform",
            "optim": "adam",
            "adam_beta2": 0.98,
            "adam_eps": job["adam_eps"],
            "learning_rate": job["learning_rate"],
            "decay_method": "none",
            "max_grad_norm": 1.0,
            "dropout": [job["dropout"]],
            "attention_dropout": [job["dropout"]],
            "label_smoothing": job["label_smoothing"],
            "normalization": "tokens",
            "batch_type": "tokens",
            "batch_size": 4096,
            "train_steps": 10**9,
            "save_checkpoint_steps": 10**9,
            "valid_steps": 10**9,
            "model_path": f"{folder}/model",
        },
        report_every=10**9,
    )


def feed(job):
    """Yield batches as the loader of Eole makes them."""
    for src, tgt in batches(job):
        src, tgt = torch.from_numpy(src), torch.from_numpy(tgt)
        begin = torch.full_like(tgt[:, :1], job["bos_id"])
        lengths = (src != job["pad_id"]).sum(1)
        tgt_lengths = (tgt != job["pad_id"]).sum(1) + 1
        tgt = torch.cat([begin, tgt], dim=1)
        batch = {"src": src, "srclen": lengths, "tgt": tgt, "tgtlen": tgt_lengths}
        batch |= {"images": None, "prefix_len": None, "left_pad": False}
        # Corpus and line of every sentence, for the statistics of Eole.
        yield {**batch, "cid": ["corpus"] * len(src), "cid_line_number": list(range(len(src)))}, 0


def main():
    """Train on the job and print the result."""
    job = read_job()
    torch.set_num_threads(parallel(job)[1])
    torch.manual_seed(1)
    clock, size = Clock(job), 0
    train, update, compute_loss = (
        Trainer.train,
        Trainer._process_accumulated_batches,
        BatchProcessor._compute_loss,
    )

    def train_on_job(trainer, train_iter, train_steps, **_):
        nonlocal size
        size = sum(p.numel() for p in trainer.model.parameters())
        return train(trainer, feed(job), train_steps)

    losses = []

    def timed_update(trainer, group, *arguments):
        update(trainer, group, *arguments)
        tokens = sum(int((batch["tgt"][:, 1:] != job["pad_id"]).sum()) for batch in group)
        if clock.update(tokens, losses.pop()):
            raise Done

    def loss_in_precision(*arguments):
        bf16 = job["precision"] == "bf16"
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            loss, statistics = compute_loss(*arguments)
        losses.append(loss.detach())
        return loss, statistics

    Trainer.train, Trainer._process_accumulated_batches = train_on_job, timed_update
    BatchProcessor._compute_loss = loss_in_precision
    with tempfile.TemporaryDirectory() as folder:
        try:
            train_single.main(config(job, folder), -1)
        except Done:
            clock.answer(parameters=size)


if __name__ == "__main__":
    main()
