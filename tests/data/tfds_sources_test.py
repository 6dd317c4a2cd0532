import sys

import numpy as np
import preparing
import pytest
import tensorflow_datasets as tfds

from dape_jax import data
from dape_jax.data import preparation, tfds_sources
from dape_jax.errors import ConfigError


class DapeJaxTestNovels(tfds.core.GeneratorBasedBuilder):
  VERSION = tfds.core.Version("1.2.0")

  def _info(self):
    features = {"book_text": tfds.features.Text(), "year": np.int64}
    return tfds.core.DatasetInfo(
        builder=self, features=tfds.features.FeaturesDict(features)
    )

  def _split_generators(self, dl_manager):
    return {
        "train": self._generate_examples(0),
        "test": self._generate_examples(1),
    }

  def _generate_examples(self, seed):
    for i, text in enumerate(preparing.texts(300, seed)):
      yield i, {"book_text": f"{seed} {text}", "year": i}


@pytest.fixture(scope="module")
def novels(tmp_path_factory):
  folder = str(tmp_path_factory.mktemp("tfds"))
  builder = DapeJaxTestNovels(data_dir=folder, file_format="array_record")
  builder.download_and_prepare()
  return folder


def test_datasets_keep_their_own_splits(novels, tmp_path, no_network):
  splits = tfds_sources.open_dataset(
      "dape_jax_test_novels", novels, "book_text"
  )
  assert splits.keys() == {"train", "test"}
  job = preparing.job(
      [],
      tmp_path / "out",
      sources={name: [split] for name, split in splits.items()},
      held_out={"validation": 0.1},
  )
  sources = preparation.run(job)["sources"]
  assert [s["documents"] for s in sources] == [300, 300]
  corpus = data.open_folder(tmp_path / "out")
  test = preparing.documents(corpus, "test")
  assert sorted(test.values()) == sorted(
      f"1 {text}".encode() for text in preparing.texts(300, 1)
  )
  source = f"{splits['test'].name}"
  assert source == "dape_jax_test_novels/1.2.0 test"
  assert list(test)[4] == f"{source}:5"
  records = list(splits["train"].records(290))
  assert [r.number for r in records] == list(range(291, 301))
  assert "tensorflow" not in sys.modules


def test_unreadable_datasets_name_the_fix(novels, tmp_path, no_network):
  for name, folder, field, message in (
      ("pg19", str(tmp_path), "text", r"tfds-prepare.*'pg19'.*array_record"),
      ("dape_jax_test_novels", novels, "text", r'text_field.*"book_text"'),
      ("dape_jax_test_novels", "gs://x", "text", "copy it to this machine"),
  ):
    with pytest.raises(ConfigError, match=message):
      tfds_sources.open_dataset(name, folder, field)
