"""Other names of keys: those of earlier versions, which stored configs may have, and those of other toolkits.

A key that is typed by such a name is refused with the name it has here.

Knows keys and plain values; knows no dataclass.
"""

from __future__ import annotations

from typing import Any

RENAMED_KEYS = {
    "data.split": "data.scored_split",
    "decoding.alpha": "decoding.length_penalty_alpha",
    "decoding.num_best": "decoding.n_best",
    "trainer.label_smoothing": "objective.label_smoothing",
    "optimizer.algorithm": "optimizer.name",
    "optimizer.muon_momentum": "optimizer.momentum",
    "optimizer.muon_rms": "optimizer.rms",
    "optimizer.muon_iterations": "optimizer.iterations",
    "optimizer.schedule": "schedule.name",
    "optimizer.warmup_steps": "schedule.warmup_steps",
    "optimizer.factor": "schedule.factor",
    "optimizer.peak_rate": "schedule.peak_rate",
    "optimizer.final_rate": "schedule.final_rate",
    "optimizer.decay_steps": "schedule.decay_steps",
    "optimizer.reduce_factor": "schedule.reduce_factor",
    "optimizer.plateau_patience": "schedule.plateau_patience",
    "optimizer.min_rate": "schedule.min_rate",
}
"""Full key of an earlier version -> its name now."""

RENAMED_CHOICES = {
    f"optimizer={name}": f"schedule={name}"
    for name in ("noam", "inverse_sqrt", "linear", "cosine", "plateau", "constant")
}
"""GROUP=CHOICE of an earlier version -> what it is now."""

SYNONYMS = {
    "schedule.peak_rate": ("lr", "learning_rate"),
    "schedule.warmup_steps": ("warmup", "warmup_updates", "num_warmup_steps", "learning_rate_warmup"),
    "optimizer.clip_norm": ("clip", "clip_grad_norm", "max_grad_norm", "gradient_clip"),
    "trainer.batch_tokens": (
        "max_tokens",
        "batch_size",
        "mini_batch",
        "mini_batch_words",
        "per_device_train_batch_size",
    ),
    "trainer.accumulate": ("update_freq", "accum_count", "gradient_accumulation_steps", "optimizer_delay"),
    "trainer.max_steps": ("steps", "train_steps", "max_update", "max_updates", "updates"),
    "trainer.max_epochs": ("epochs", "num_epochs", "num_train_epochs", "max_epoch"),
    "trainer.eval_every_steps": ("valid_steps", "eval_steps", "validation_freq", "eval_every", "valid_freq"),
    "trainer.log_every_steps": ("log_interval", "logging_steps", "logging_freq", "report_every", "disp_freq"),
    "trainer.patience": ("early_stopping", "early_stopping_patience", "max_num_checkpoint_not_improved"),
    "trainer.keep_last": ("keep_last_epochs", "keep_checkpoint", "save_total_limit"),
    "trainer.ema_decay": ("exponential_smoothing", "average_decay"),
    "trainer.save_every_steps": ("save_steps", "save_interval_updates", "save_checkpoint_steps", "save_freq"),
    "model.encoder_layers": ("layers", "num_layers", "enc_depth", "enc_layers"),
    "model.decoder_layers": ("layers", "num_layers", "dec_depth", "dec_layers"),
    "model.tying": (
        "share_all_embeddings",
        "share_decoder_input_output_embed",
        "share_decoder_embeddings",
        "share_embeddings",
        "tie_word_embeddings",
        "tied_embeddings",
        "tied_embeddings_all",
        "tied_softmax",
        "weight_tying",
        "weight_tying_type",
    ),
    "model.num_heads": ("heads", "attention_heads", "transformer_heads"),
    "model.d_model": ("hidden_size", "rnn_size", "dim", "embed_dim", "dim_emb", "embedding_dim"),
    "model.d_ff": ("ffn_dim", "transformer_ff", "ff_size", "transformer_dim_ffn", "ffn_embed_dim"),
    "decoding.beam_size": ("beam", "num_beams", "beams"),
    "decoding.length_penalty_alpha": ("lenpen", "alpha"),
    "decoding.n_best": ("nbest", "num_return_sequences", "n_best_size"),
    "decoding.max_length_ratio": ("max_len_a", "max_length_factor"),
    "decoding.max_length_offset": ("max_len_b",),
    "num_validation_pairs": ("decode_and_evaluate",),
    "tokenizer.joint": ("joined_dictionary", "share_vocab", "shared_vocab"),
    "runtime.precision": ("fp16", "bf16", "amp"),
    "data.src": ("src_lang", "source_lang", "source"),
    "data.tgt": ("tgt_lang", "target_lang", "target"),
    "run": ("output_dir", "save_dir", "out", "save_model", "model_dir"),
}
"""Full key -> names that it has in other toolkits, in whatever part they are typed."""

NEW_PARTS = {"objective": {"name": "cross_entropy"}, "adapt": {"name": "none"}}
"""Parts that a config of an earlier version lacks -> what they were before they could be chosen."""

NEW_KEYS = ("init.src_embeddings", "init.tgt_embeddings")
"""Keys that a config of an earlier version lacks, and that say with null what was before them."""


def migrate(plain: dict[str, Any]) -> None:
    """Bring a stored config (nested dicts) of an earlier version up to date in place: keys, some values."""
    optimizer = plain.get("optimizer")
    if isinstance(optimizer, dict) and optimizer.get("algorithm") in ("adam", "adamw"):
        for name in ("muon_momentum", "muon_rms", "muon_iterations"):  # stored for all, used by Muon alone
            optimizer.pop(name, None)
    _forget_defaults(plain.get("decoding"))
    for old, new in RENAMED_KEYS.items():
        (old_part, old_name), (new_part, new_name) = old.rsplit(".", 1), new.rsplit(".", 1)
        values = plain.get(old_part)
        if isinstance(values, dict) and old_name in values:
            moved = plain.setdefault(new_part, dict(NEW_PARTS.get(new_part, {})))
            if isinstance(moved, dict) and new_name not in moved:
                moved[new_name] = values.pop(old_name)


def _forget_defaults(decoding: Any) -> None:
    """Set to null, which says the same on a CPU, what earlier versions stored unless told otherwise.

    They stored a number for `batch_tokens`, which is null now unless the user sets it.
    """
    if isinstance(decoding, dict) and decoding.get("batch_tokens") is not None:
        for name, value in (("precision", "fp32"), ("batch_tokens", 8192)):
            decoding[name] = None if decoding.get(name, value) == value else decoding[name]
