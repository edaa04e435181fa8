"""Train OpenNMT-py on the batches of a job, with its own trainer, model, loss and optimizer.

Only the source of the batches and the end of an update are replaced. OpenNMT-py has mixed precision on CUDA
alone; its two uses of autocast are redirected to bf16 on CPU.
"""

import tempfile

import torch
from job import Clock, batches, corpus_files, leave_out, parallel, read_job

leave_out("spacy", "fasttext", "ahocorasick", "rapidfuzz")  # for transforms of text, which are not used here
from onmt import train_single  # noqa: E402
from onmt.bin.train import train  # noqa: E402
from onmt.opts import train_opts  # noqa: E402
from onmt.trainer import Trainer  # noqa: E402
from onmt.utils.parse import ArgumentParser  # noqa: E402


class Done(Exception):
    """The last update of the job is over."""


def options(job, folder):
    """Return the arguments of `onmt_train`."""
    vocabulary, text = corpus_files(job, folder, ["<blank>", "<unk>", "<s>", "</s>"])
    sizes, never = job["sizes"], 10**9
    values = {
        "data": f"{{corpus: {{path_src: {text}, path_tgt: {text}, transforms: []}}}}",
        "src_vocab": vocabulary,
        "tgt_vocab": vocabulary,
        "save_model": f"{folder}/model",
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "enc_layers": sizes["encoder_layers"],
        "dec_layers": sizes["decoder_layers"],
        "hidden_size": sizes["d_model"],
        "word_vec_size": sizes["d_model"],
        "heads": sizes["num_heads"],
        "transformer_ff": sizes["d_ff"],
        "dropout": job["dropout"],
        "attention_dropout": job["dropout"],
        "label_smoothing": job["label_smoothing"],
        "optim": "adam",
        "adam_beta2": 0.98,
        "self_attn_type": job["attention"],
        "learning_rate": job["learning_rate"],
        "decay_method": "none",
        "max_grad_norm": 1.0,
        "normalization": "tokens",
        "batch_type": "tokens",
        "batch_size": 4096,
        "num_workers": 0,
        "train_steps": never,
        "valid_steps": never,
        "save_checkpoint_steps": never,
        "report_every": never,
    }
    switches = ("share_vocab", "share_embeddings", "share_decoder_embeddings", "position_encoding")
    switches += ("add_qkvbias", "add_ffnbias")
    return [f"--{key}={value}" for key, value in values.items()] + [f"--{key}" for key in switches]


def feed(job):
    """Yield batches as the loader of OpenNMT-py makes them, with a last dimension for features."""
    for src, tgt in batches(job):
        src, tgt = torch.from_numpy(src), torch.from_numpy(tgt)
        begin = torch.full_like(tgt[:, :1], job["bos_id"])
        tgt = torch.cat([begin, tgt], dim=1)[:, :, None]
        lengths = (src != job["pad_id"]).sum(1)
        yield (
            {
                "src": src[:, :, None],
                "srclen": lengths,
                "tgt": tgt,
                "tgtlen": (tgt != job["pad_id"]).sum((1, 2)),
            },
            0,
        )


def main():
    """Train on the job and print the result."""
    job = read_job()
    torch.set_num_threads(parallel(job)[1])
    torch.manual_seed(1)
    clock, size = Clock(job), 0
    own_train, own_update = Trainer.train, Trainer._gradient_accumulation
    if job["precision"] == "bf16":
        torch.cuda.amp.autocast = lambda **_: torch.autocast("cpu", torch.bfloat16)

    def train_on_job(trainer, train_iter, train_steps, **_):
        nonlocal size
        size = sum(p.numel() for p in trainer.model.parameters())
        return own_train(trainer, feed(job), train_steps)

    def timed_update(trainer, group, normalization, total, report):
        summed = total.loss
        own_update(trainer, group, normalization, total, report)
        tokens = sum(int((batch["tgt"][:, 1:] != job["pad_id"]).sum()) for batch in group)
        if clock.update(tokens, (total.loss - summed) / tokens):
            raise Done

    Trainer.train, Trainer._gradient_accumulation = train_on_job, timed_update
    # The set-up of validation, which is not needed here.
    train_single.build_dynamic_dataset_iter = lambda *_, **__: None
    with tempfile.TemporaryDirectory() as folder:
        parser = ArgumentParser()
        train_opts(parser)
        try:
            train(parser.parse_args(options(job, folder)))
        except Done:
            clock.answer(parameters=size)


if __name__ == "__main__":
    main()
