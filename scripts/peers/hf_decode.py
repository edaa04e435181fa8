"""Translate with `generate` of Hugging Face's transformers: a run as `nmt export` has written it."""

import torch
from job import in_batches, read_job, translated
from transformers import AutoModelForSeq2SeqLM


def main():
    """Translate the lines and print the result."""
    job = read_job()
    torch.set_num_threads(job["threads"])
    model = AutoModelForSeq2SeqLM.from_pretrained(job["exported"]).eval()

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
