"""Text for training and evaluation: corpora, tokenizers, batches.

corpus = dape_jax.data.load_corpus("code")
batches = dape_jax.data.TrainBatches(
    corpus.split("train"), length=512, batch_size=32, seed=0
)
batch = batches[0]  # any step, in any order
"""

from dape_jax.data.batches import TrainBatches
from dape_jax.data.corpus import Corpus, Split, open_folder
from dape_jax.data.documents import Document, open_corpus
from dape_jax.data.loading import load_corpora, load_corpus, load_tokenizer
from dape_jax.data.task_batches import TaskBatches
from dape_jax.data.tokenizers import ByteTokenizer, Tokenizer, make_tokenizer

__all__ = [
    "ByteTokenizer",
    "Corpus",
    "Document",
    "Split",
    "TaskBatches",
    "Tokenizer",
    "TrainBatches",
    "load_corpora",
    "load_corpus",
    "load_tokenizer",
    "make_tokenizer",
    "open_corpus",
    "open_folder",
]
