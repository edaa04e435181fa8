"""Train Hugging Face's M2M100, the pre-norm Transformer of its library, on the batches of a job.

The loop is the plain one of the library's documentation: autocast for bf16, label-smoothed cross-entropy over
all positions, clipping, fused AdamW. Layer drop, which no other system has, is off.
"""

from contextlib import nullcontext

import torch
from job import Clock, batches, parallel, read_job
from torch.nn import functional as F
from transformers import M2M100Config, M2M100ForConditionalGeneration


def build(job):
    """Return a model with the sizes of the job."""
    sizes = job["sizes"]
    config = M2M100Config(
        vocab_size=job["vocab_size"],
        d_model=sizes["d_model"],
        encoder_layers=sizes["encoder_layers"],
        decoder_layers=sizes["decoder_layers"],
        encoder_attention_heads=sizes["num_heads"],
        decoder_attention_heads=sizes["num_heads"],
        encoder_ffn_dim=sizes["d_ff"],
        decoder_ffn_dim=sizes["d_ff"],
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        dropout=job["dropout"],
        attention_dropout=job["dropout"],
        activation_dropout=job["dropout"],
        activation_function="relu",
        attn_implementation=job["attention"],
        init_std=sizes["d_model"] ** -0.5,
        scale_embedding=True,
        max_position_embeddings=1024,
        pad_token_id=job["pad_id"],
        bos_token_id=job["bos_id"],
        eos_token_id=job["eos_id"],
        decoder_start_token_id=job["bos_id"],
    )
    return M2M100ForConditionalGeneration(config)


def main():
    """Train on the job and print the result."""
    job = read_job()
    torch.set_num_threads(parallel(job)[1])
    torch.manual_seed(1)
    model = build(job).train()
    adam = {"betas": (0.9, 0.98), "eps": job["adam_eps"], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(model.parameters(), lr=job["learning_rate"], fused=True, **adam)
    clock = Clock(job)
    for src, tgt in batches(job):
        src, tgt = torch.from_numpy(src), torch.from_numpy(tgt)
        tgt_in = torch.cat([torch.full_like(tgt[:, :1], job["bos_id"]), tgt[:, :-1]], dim=1)
        bf16 = job["precision"] == "bf16"
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            logits = model(
                input_ids=src, attention_mask=(src != job["pad_id"]).long(), decoder_input_ids=tgt_in
            ).logits
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                tgt.flatten(),
                ignore_index=job["pad_id"],
                label_smoothing=job["label_smoothing"],
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if clock.update((tgt != job["pad_id"]).sum(), loss.detach()):
            break
    clock.answer(parameters=sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    main()
