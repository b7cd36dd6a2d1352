"""Texts for tests, and a tiny transformer with its tokenizer in a folder."""

import os
from pathlib import Path

import numpy as np

from fedskew.data.dataset import Dataset

NEWS = Path(os.environ.get("FEDSKEW_DATA", "/nowhere"))
"""Where the files of AG News may be."""

WORDS = ("rain", "sun", "wind", "snow", "goal", "match", "team", "ball", "bank", "stock", "price", "trade")


def texts_of(train: list[str], test: list[str], y: np.ndarray, y_test: np.ndarray, name: str = "texts") -> Dataset:
    """A data set of texts with four classes or as many as there are."""
    classes = tuple("abcdefgh"[: int(max(y.max(), y_test.max())) + 1])
    x, x_test = (np.zeros((len(part), 1), dtype=np.float32) for part in (train, test))
    return Dataset(x=x, y=y, x_test=x_test, y_test=y_test, classes=classes, texts=(train, test), name=name)


def weather(rows: int = 48, seed: int = 0) -> Dataset:
    """Texts of one to nine words; most words belong to the text's class. Three classes."""
    rng = np.random.default_rng(seed)

    def text(label: int) -> str:
        own = rng.random(rng.integers(1, 10)) < 0.8
        return " ".join(WORDS[4 * label + rng.integers(4)] if mine else WORDS[rng.integers(12)] for mine in own)

    y = np.arange(rows) % 3
    return texts_of([text(c) for c in y], [text(c) for c in y[:12]], y, y[:12], "weather")


def tiny_encoder(
    folder: Path, kind: str = "bert", hidden: int = 8, layers: int = 3, words: tuple[str, ...] = WORDS
) -> str:
    """A folder with a randomly drawn encoder of a few thousand parameters and its tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    common = {"vocab_size": len(vocabulary), "max_position_embeddings": 80, "pad_token_id": 0}
    widths = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 12}
    if kind == "distilbert":
        config = transformers.DistilBertConfig(**common, dim=hidden, n_layers=layers, n_heads=2, hidden_dim=12)
    else:
        config = {"bert": transformers.BertConfig, "roberta": transformers.RobertaConfig}[kind](**common, **widths)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        transformers.AutoModel.from_config(config).save_pretrained(folder)
    return str(folder)
