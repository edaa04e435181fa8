"""The ids that stand for no text, the same for every tokenizer.

The tokenizer ends each side with EOS. A batch puts BOS in front of the decoder's input, and PAD behind
sentences that are shorter than the longest; search and sampling begin with BOS, too, and pad finished
sentences. Where source and target are one text, BOS is between them. A source that is cut gets EOS again.
"""

from __future__ import annotations

PAD_ID = 0
"""Padding: no token; masks hide it, and no loss counts it."""
UNK_ID = 1
"""Text that the vocabulary lacks."""
BOS_ID = 2
"""In front of the first target token; never predicted."""
EOS_ID = 3
"""Behind the last token of either side; predicting it ends a sentence. The largest of the special ids."""
