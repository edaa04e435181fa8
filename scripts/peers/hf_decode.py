"""Translate with Hugging Face's M2M100 and its `generate`, with the weights of a run.

The sinusoids of M2M100 differ from the paper's in layout and in wavelengths, but are a table, which is
replaced. The first token has row `padding_idx` + 1 of that table.
"""

import numpy as np
import torch
from hf_train import build
from job import in_batches, read_job, translated
from states import attention, feed_forward, renamed


def names(side):
    """Return the names in a layer of M2M100 for the parts of our layers."""

    def sublayer(own, theirs):
        maps = (f"{theirs}.{part}_proj" for part in ("q", "k", "v", "out"))
        return attention(own, maps, f"{theirs}_layer_norm")

    cross = sublayer("cross_attention", "encoder_attn") if side == "decoder" else {}
    return sublayer("self_attention", "self_attn") | cross | feed_forward("fc1", "fc2", "final_layer_norm")


def converted(weights):
    """Return the state dict of M2M100ForConditionalGeneration."""
    state = renamed(weights, {side: names(side) for side in ("encoder", "decoder")})
    embeddings = torch.from_numpy(weights["src_embedding.tokens.weight"])
    tied = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    return {f"model.{name}": value for name, value in state.items()} | {
        f"{name}.weight": embeddings for name in tied
    }


def main():
    """Convert the weights, translate the lines and print the result."""
    job = read_job()
    torch.set_num_threads(job["threads"])
    weights = dict(np.load(job["weights"]))
    model = build(job).eval()
    model.load_state_dict(converted(weights))
    positions = torch.from_numpy(weights["positions"])
    for stack in (model.model.encoder, model.model.decoder):
        first = job["pad_id"] + 1
        table = stack.embed_positions.weights
        rows = min(len(table) - first, len(positions))
        table[first : first + rows] = positions[:rows]

    def search(sources):
        src = torch.from_numpy(sources)
        out = model.generate(
            input_ids=src,
            attention_mask=(src != job["pad_id"]).long(),
            num_beams=job["beam_size"],
            do_sample=False,
            length_penalty=job["alpha"],
            max_new_tokens=2 * src.shape[1] + 10,
        )
        return out[:, 1:].tolist()

    with torch.inference_mode():
        translated(job, in_batches(job, search))


if __name__ == "__main__":
    main()
