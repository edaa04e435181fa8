"""Translate with Hugging Face's M2M100 and its `generate`: the weights of a run, put in here.

Its sinusoids differ from those of the paper in layout and in wavelengths, but stand in a table, which is
replaced. Its table begins with the row of the first token after `padding_idx`.
"""

import numpy as np
import torch
from hf_train import build
from job import read_job, translated


def split(weights, name):
    """The queries, keys and values of a sublayer of attention."""
    keys, values = np.split(weights[f"{name}.key_value.weight"], 2)
    key_bias, value_bias = np.split(weights[f"{name}.key_value.bias"], 2)
    query, query_bias = weights[f"{name}.query.weight"], weights[f"{name}.query.bias"]
    return {"q_proj": (query, query_bias), "k_proj": (keys, key_bias), "v_proj": (values, value_bias)}


def converted(job, weights):
    """The state dict of M2M100ForConditionalGeneration."""
    state = {"model.shared.weight": weights["src_embedding.tokens.weight"]}

    def put(name, weight, bias):
        state[f"{name}.weight"], state[f"{name}.bias"] = weight, bias

    def copy(name, own):
        put(name, weights[f"{own}.weight"], weights[f"{own}.bias"])

    for side in ("encoder", "decoder"):
        state[f"model.{side}.embed_tokens.weight"] = state["model.shared.weight"]
        copy(f"model.{side}.layer_norm", f"{side}_norm")
        for i in range(job["sizes"][f"{side}_layers"]):
            layer, own = f"model.{side}.layers.{i}", f"{side}.{i}"
            kinds = {"self_attn": "self_attention"}
            if side == "decoder":
                kinds["encoder_attn"] = "cross_attention"
            for kind, sublayer in kinds.items():
                for part, values in split(weights, f"{own}.{sublayer}.attention").items():
                    put(f"{layer}.{kind}.{part}", *values)
                copy(f"{layer}.{kind}.out_proj", f"{own}.{sublayer}.attention.output")
                copy(f"{layer}.{kind}_layer_norm", f"{own}.{sublayer}.residual.norm")
            copy(f"{layer}.fc1", f"{own}.feed_forward.block.inner")
            copy(f"{layer}.fc2", f"{own}.feed_forward.block.outer")
            copy(f"{layer}.final_layer_norm", f"{own}.feed_forward.residual.norm")
    state["lm_head.weight"] = state["model.shared.weight"]
    return {name: torch.from_numpy(value) for name, value in state.items()}


def main():
    """Convert, translate, answer."""
    job = read_job()
    torch.set_num_threads(job["threads"])
    weights = dict(np.load(job["weights"]))
    model = build(job).eval()
    model.load_state_dict(converted(job, weights))
    positions = torch.from_numpy(weights["positions"])
    for stack in (model.model.encoder, model.model.decoder):
        first = job["pad_id"] + 1
        table = stack.embed_positions.weights
        rows = min(len(table) - first, len(positions))
        table[first : first + rows] = positions[:rows]

    def search(sources):
        longest = max(map(len, sources))
        src = torch.full((len(sources), longest), job["pad_id"])
        for row, source in zip(src, sources, strict=True):
            row[: len(source)] = torch.tensor(source)
        out = model.generate(
            input_ids=src,
            attention_mask=(src != job["pad_id"]).long(),
            num_beams=job["beam_size"],
            do_sample=False,
            length_penalty=job["alpha"],
            max_new_tokens=2 * longest + 10,
        )
        ends = (job["eos_id"], job["pad_id"])
        return [[i for i in row[1:] if i not in ends] for row in out.tolist()]

    def translate(sources):
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        found = [[] for _ in sources]
        for start in range(0, len(order), job["batch_sentences"]):
            some = order[start : start + job["batch_sentences"]]
            for i, ids in zip(some, search([sources[i] for i in some]), strict=True):
                found[i] = ids
        return found

    with torch.inference_mode():
        translated(job, translate)


if __name__ == "__main__":
    main()
