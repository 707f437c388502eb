"""A byte-level BPE vocabulary trained on the corpus, as a Hugging Face fast tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

BEGIN, END, MASK = "<|begin|>", "<|end|>", "<|mask|>"
BEGIN_ID, END_ID, MASK_ID = 0, 1, 2
"""Special ids: start of a file, end of a file, and the drafter's noise token."""

# Indentation stays with its line break, so a Python line start is one or two tokens.
SPLIT = r"\n[ \t]*| ?[A-Za-z_]+| ?[0-9]{1,3}| ?[^\sA-Za-z_0-9]+|\s+"


def train_tokenizer(texts: Iterable[str], vocab_size: int = 4096) -> PreTrainedTokenizerFast:
    """Train on `texts`; every byte string round-trips. Encoding prepends `<|begin|>`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern=Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BEGIN, END, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, BEGIN_ID)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        mask_token=MASK,
        clean_up_tokenization_spaces=False,
    )
