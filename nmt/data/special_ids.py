"""The ids that stand for no text, the same for every tokenizer.

Who adds them: the tokenizer ends each side with EOS. A batch puts BOS in front of what the decoder reads and
PAD behind what is shorter than the longest; search and sampling begin with BOS too, and PAD what is finished.
Where source and target are one text, BOS stands between them. A source that is cut gets its EOS again.
"""

from __future__ import annotations

PAD_ID = 0
"""Padding: no token; masks hide it, and no loss counts it."""
UNK_ID = 1
"""What the vocabulary lacks."""
BOS_ID = 2
"""In front of the first target token; never predicted."""
EOS_ID = 3
"""Behind the last token of either side; predicting it ends a sentence. The largest of the special ids."""
