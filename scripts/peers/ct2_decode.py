"""Translate with CTranslate2: the weights of a run, converted here, in the number format of the job.

CTranslate2's specification of a Transformer has the queries, keys and values of self-attention in one matrix,
and takes a table of positions, so that nothing has to be rearranged.
"""

import shutil
from pathlib import Path

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec
from job import read_job, translated


def put(spec, weights, name, *, bias=True):
    """Fill a linear map."""
    spec.weight = weights[f"{name}.weight"]
    if bias:
        spec.bias = weights[f"{name}.bias"]


def put_norm(spec, weights, name):
    """Fill a layer norm."""
    spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]


def put_attention(spec, weights, name, *, to_itself):
    """Fill a sublayer of attention."""
    query, rest = (f"{name}.attention.{part}" for part in ("query", "key_value"))
    if to_itself:
        for kind in ("weight", "bias"):
            setattr(spec.linear[0], kind, np.concatenate([weights[f"{x}.{kind}"] for x in (query, rest)]))
    else:
        put(spec.linear[0], weights, query)
        put(spec.linear[1], weights, rest)
    put(spec.linear[-1], weights, f"{name}.attention.output")
    put_norm(spec.layer_norm, weights, f"{name}.residual.norm")


def put_feed_forward(spec, weights, name):
    """Fill a feed-forward sublayer."""
    put(spec.linear_0, weights, f"{name}.block.inner")
    put(spec.linear_1, weights, f"{name}.block.outer")
    put_norm(spec.layer_norm, weights, f"{name}.residual.norm")


def converted(job, weights):
    """Return a specification for CTranslate2 with the weights of the run."""
    sizes = job["sizes"]
    layers = (sizes["encoder_layers"], sizes["decoder_layers"])
    spec = TransformerSpec.from_config(layers, sizes["num_heads"], pre_norm=True)
    for side, embeddings in (("encoder", spec.encoder.embeddings[0]), ("decoder", spec.decoder.embeddings)):
        stack = getattr(spec, side)
        embeddings.weight = weights[f"{'src' if side == 'encoder' else 'tgt'}_embedding.tokens.weight"]
        stack.position_encodings.encodings = weights["positions"]
        put_norm(stack.layer_norm, weights, f"{side}_norm")
        for i, layer in enumerate(stack.layer):
            put_attention(layer.self_attention, weights, f"{side}.{i}.self_attention", to_itself=True)
            if side == "decoder":
                put_attention(layer.attention, weights, f"{side}.{i}.cross_attention", to_itself=False)
            put_feed_forward(layer.ffn, weights, f"{side}.{i}.feed_forward")
    put(spec.decoder.projection, weights, "output", bias=False)
    for register in (spec.register_source_vocabulary, spec.register_target_vocabulary):
        register(job["pieces"])
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (
        job["pieces"][job[key]] for key in ("unk_id", "bos_id", "eos_id")
    )
    spec.config.decoder_start_token = spec.config.bos_token
    spec.config.add_source_eos = False
    return spec


def main():
    """Convert the weights, translate the lines and print the result."""
    job = read_job()
    folder = Path(job["work"], f"ctranslate2-{job['compute']}")
    if not folder.exists():
        spec = converted(job, dict(np.load(job["weights"])))
        spec.validate()
        spec.optimize(quantization=job["compute"])
        partial = Path(f"{folder}.part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        spec.save(str(partial))
        partial.rename(folder)
    threads = {"inter_threads": job["workers"], "intra_threads": max(job["threads"] // job["workers"], 1)}
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type=job["compute"], **threads)
    pieces, ids = job["pieces"], {piece: i for i, piece in enumerate(job["pieces"])}

    def translate(sources):
        results = translator.translate_batch(
            [[pieces[i] for i in source] for source in sources],
            beam_size=job["beam_size"],
            length_penalty=job["alpha"],
            max_decoding_length=max(2 * max(map(len, sources)) + 10, 1),
            max_batch_size=job["batch_sentences"],
        )
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    translated(job, translate)


if __name__ == "__main__":
    main()
