"""Make a model for Marian out of a run, and train it on.

Marian's pre-norm layers normalise the queries of self-attention and not its keys and values, its sinusoids
have other wavelengths, and its decoder begins with a vector of zeros: no run can be converted without a
change of the function. The weights of the run are put in the places that they have in Marian, and Marian's
own trainer goes on from there, so that the model translates again. It has the same sizes, vocabulary and
lengths of translations, which speed depends on, and a BLEU of its own.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from job import parallel, read_job


def run(*arguments):
    """Run a command of Marian, which ends its process."""
    subprocess.run([sys.executable, "-m", "pymarian", *arguments], stdout=sys.stderr, check=True)


def converted(weights):
    """Return the arrays of Marian's model, whose matrices are (input, output) and whose vectors are rows."""
    width = weights["encoder_norm.weight"].shape[0]
    order = np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])
    found = {"Wemb": weights["src_embedding.tokens.weight"][:, order]}
    found["decoder_ff_logit_out_b"] = np.zeros((1, len(found["Wemb"])))
    for side in ("encoder", "decoder"):
        for kind, theirs in (("weight", "scale"), ("bias", "bias")):
            found[f"{side}_top_ln_{theirs}"] = weights[f"{side}_norm.{kind}"][None, order]
        number = 0
        while f"{side}.{number}.feed_forward.residual.norm.weight" in weights:
            layer = {
                name.removeprefix(f"{side}.{number}."): value
                for name, value in weights.items()
                if name.startswith(f"{side}.{number}.")
            }
            found |= _layer(layer, f"{side}_l{number + 1}", order)
            number += 1
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in found.items()}


def _layer(layer, prefix, order):
    found = {}
    for own, theirs in (("self_attention", "self"), ("cross_attention", "context")):
        if f"{own}.residual.norm.weight" not in layer:
            continue
        maps = {"q": "query", "kv": "key_value", "o": "output"}
        for kind, letter in (("weight", "W"), ("bias", "b")):
            q, both, o = (layer[f"{own}.attention.{name}.{kind}"] for name in maps.values())
            k, v = np.split(both, 2)
            for name, value in (("q", q), ("k", k), ("v", v)):
                value = value[:, order].T if kind == "weight" else value[None]
                found[f"{prefix}_{theirs}_{letter}{name}"] = value
            found[f"{prefix}_{theirs}_{letter}o"] = o[order].T if kind == "weight" else o[None, order]
        found |= _norm(layer, f"{own}.residual.norm", f"{prefix}_{theirs}_Wo", order)
    block = "feed_forward.block"
    found[f"{prefix}_ffn_W1"] = layer[f"{block}.inner.weight"][:, order].T
    found[f"{prefix}_ffn_b1"] = layer[f"{block}.inner.bias"][None]
    found[f"{prefix}_ffn_W2"] = layer[f"{block}.outer.weight"][order].T
    found[f"{prefix}_ffn_b2"] = layer[f"{block}.outer.bias"][None, order]
    return found | _norm(layer, "feed_forward.residual.norm", f"{prefix}_ffn_ffn", order)


def _norm(layer, own, theirs, order):
    names = (("weight", "scale"), ("bias", "bias"))
    return {f"{theirs}_ln_{name}_pre": layer[f"{own}.{kind}"][None, order] for kind, name in names}


def trained(job, folder, *more):
    """Run Marian's trainer on the text of the job."""
    sizes, (workers, _) = job["sizes"], parallel(job)
    settings = {
        "type": "transformer",
        "model": f"{folder}/model.npz",
        "dim-emb": sizes["d_model"],
        "enc-depth": sizes["encoder_layers"],
        "dec-depth": sizes["decoder_layers"],
        "transformer-heads": sizes["num_heads"],
        "transformer-dim-ffn": sizes["d_ff"],
        "transformer-ffn-activation": "relu",
        "transformer-preprocess": "n",
        "transformer-postprocess": "da",
        "transformer-postprocess-top": "n",
        "transformer-dropout": 0.1,
        "label-smoothing": 0.1,
        "learn-rate": 1e-3,
        "lr-warmup": job["updates"] // 5,
        "mini-batch": 1000,
        "mini-batch-words": 2048,
        "cpu-threads": workers,
        "workspace": 1024,
        "seed": 1,
        "disp-freq": 50,
    }
    given = [x for key, value in settings.items() for x in (f"--{key}", str(value))]
    texts = ["--train-sets", f"{folder}/source.txt", f"{folder}/target.txt"]
    vocabularies = ["--vocabs", *[f"{folder}/vocabulary.spm"] * 2]
    switches = ["--tied-embeddings-all", "--sync-sgd", "--overwrite"]
    run("train", *given, *texts, *vocabularies, *switches, *map(str, more))


def main():
    """Write model.float32.bin, model.int8.bin and vocabulary.spm to the folder of the job."""
    job = read_job()
    folder = Path(job["marian"])
    shutil.copy(job["tokenizer"], folder / "vocabulary.spm")
    trained(job, folder, "--after-batches", 1)  # for the description of the model that Marian wants in it
    file = folder / "model.npz"
    made, found = dict(np.load(file)), converted(dict(np.load(job["weights"])))
    differing = {name for name in made if name not in found or made[name].shape != found[name].shape}
    if differing != {"special:model.yml"} or found.keys() - made.keys():
        raise SystemExit(f"Marian's model has other arrays: {sorted(differing)}")
    np.savez(file, **found, **{"special:model.yml": made["special:model.yml"]})
    for name in ("model.npz.optimizer.npz", "model.npz.progress.yml"):
        (folder / name).unlink(missing_ok=True)
    if job["updates"]:
        trained(job, folder, "--after-batches", job["updates"])
    for number, kind in (("float32", "float32"), ("int8", "intgemm8")):
        run("convert", "--from", str(file), "--to", str(folder / f"model.{number}.bin"), "--gemm-type", kind)


if __name__ == "__main__":
    main()
