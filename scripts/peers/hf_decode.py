"""Translate with `generate` of Hugging Face's transformers: a run as `nmt export` has written it."""

import torch
from job import by_length, of_text, parallel, read_job, translated
from transformers import AutoModelForSeq2SeqLM


def load(job):
    """Return a function of lines."""
    torch.set_num_threads(parallel(job)[1])
    kind = {"attn_implementation": job["attention"]}
    model = AutoModelForSeq2SeqLM.from_pretrained(job["exported"], **kind).eval()

    @torch.inference_mode()
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

    return of_text(job, by_length(job, search))


if __name__ == "__main__":
    translated(read_job(), load)
