"""Stack Overflow tag prediction: bags of words to tags, by user.

As in the PPSGD paper's experiments: the first 500 users of the test split, 5,000
words and 80 tags, up to 500 training documents a user and all of its test
documents. A document's features are the mean of the one-hot vectors of the words
of text and title; words outside the vocabulary count in the length and are then
dropped. Its label is 0 or 1 for each tag.

The vocabularies are TensorFlow Federated's counts over all users, which are
public here: they are outside the guarantee.

A user's documents are read once and kept in sparse form; a cohort is made dense
when it is loaded.
"""

import collections
import json
import os
import tarfile
from collections.abc import Sequence

import numpy as np

from datasets import emnist, federated, files, sources, tff_sqlite

FILE = sources.STACKOVERFLOW
WORDS_FILE = sources.STACKOVERFLOW_WORDS
TAGS_FILE = sources.STACKOVERFLOW_TAGS
_CITATION = 'Stack Overflow data (CC BY-SA 3.0), published with TensorFlow Federated.'


def load(
  *,
  seed: int,
  data_dir: str | os.PathLike | None,
  num_clients: int,
  pick: str,
  num_words: int,
  num_tags: int,
  max_train_examples: int,
) -> federated.FederatedDataset:
  """Users as clients; both splits are a `ClientSource`.

  Args:
    seed: picks the users where `pick` is random.
    data_dir: folder with `stackoverflow.sqlite` and the two count archives, or
      where to put them; or None.
    num_clients: how many users.
    pick: the `first` in alphabetical order, as in the paper, or `random`.
    num_words: size of the vocabulary, most frequent words first.
    num_tags: number of tags, most frequent first.
    max_train_examples: a user's documents beyond these are left out.
  """
  file = files.get(FILE, data_dir, digest=False)
  words_file, tags_file = files.get(WORDS_FILE, data_dir), files.get(TAGS_FILE, data_dir)
  words = _numbered(read_words(words_file.path, num_words), num_words, 'num_words')
  tags = _numbered(read_tags(tags_file.path, num_tags), num_tags, 'num_tags')
  counts = tff_sqlite.shared_clients(file.path, 'train', 'test')
  ids = emnist.pick_clients(list(counts), num_clients=num_clients, pick=pick, seed=seed)

  def source(split: str, sizes: Sequence[int]) -> federated.ClientSource:
    documents: dict[int, list[_Document]] = {}

    def read(k: int) -> tuple[np.ndarray, np.ndarray]:
      if k not in documents:
        raw = tff_sqlite.read_client(file.path, split, ids[k], limit=sizes[k])
        documents[k] = [_document(example, words, tags) for example in raw]
      return _dense(documents[k], num_words, num_tags)

    return federated.ClientSource(
      num_examples=np.array(sizes, np.int32), max_examples=max(sizes), read=read
    )

  return federated.FederatedDataset(
    name='stackoverflow_tags',
    task=federated.Task(kind='multilabel', num_outputs=num_tags, example_shape=(num_words,)),
    train=source('train', [min(counts[id_][0], max_train_examples) for id_ in ids]),
    test=source('test', [counts[id_][1] for id_ in ids]),
    client_ids=tuple(ids),
    preprocessing=(
      'Words and tags are the most frequent ones among all users, as published: these choices'
      ' are outside the guarantee.',
    ),
    checksums={
      FILE.name: file.sha256 or f'{FILE.name}, {file.path.stat().st_size} bytes',
      WORDS_FILE.name: words_file.sha256,
      TAGS_FILE.name: tags_file.sha256,
    },
    citation=_CITATION,
  )


def read_words(path: str | os.PathLike, size: int) -> list[str]:
  """The first words of the archive's list, one `word count` a line, most frequent first."""
  lines = _read_member(path, 'stackoverflow.word_count').decode().splitlines()
  return [line.split()[0] for line in lines[:size]]


def read_tags(path: str | os.PathLike, size: int) -> list[str]:
  """The most frequent tags of the archive's JSON counts."""
  counts = json.loads(_read_member(path, 'stackoverflow.tag_count'))
  # Python's sort is stable, as TensorFlow Federated's own order of equal counts.
  return sorted(counts, key=counts.get, reverse=True)[:size]


def _read_member(path: str | os.PathLike, name: str) -> bytes:
  """A file inside an archive, without unpacking anything to disk."""
  try:
    with tarfile.open(path) as archive:
      for member in archive:
        stream = archive.extractfile(member) if os.path.basename(member.name) == name else None
        if stream is not None:
          return stream.read()
  except (tarfile.TarError, EOFError, OSError) as error:
    raise ValueError(f'{path} cannot be read as an archive: {error}.') from error
  raise ValueError(f'{path} does not contain {name}.')


def _numbered(names: list[str], size: int, option: str) -> dict[str, int]:
  if size < 1 or len(names) < size:
    raise ValueError(f'{option} is {size}; the file has 1..{len(names)}.')
  return {name: k for k, name in enumerate(names)}


# The places and values of a document's words, and the places of its tags.
_Document = tuple[np.ndarray, np.ndarray, np.ndarray]


def _document(example: bytes, words: dict[str, int], tags: dict[str, int]) -> _Document:
  import tensorflow as tf  # Only where such a file is read.

  feature = tf.train.Example.FromString(example).features.feature
  try:
    tokens, title, tag_line = (
      feature[key].bytes_list.value[0].decode() for key in ('tokens', 'title', 'tags')
    )
  except IndexError as error:
    raise ValueError(f'{FILE.name} holds an example without tokens, title and tags.') from error
  text = [*tokens.split(), *title.split()]
  found = collections.Counter(words[word] for word in text if word in words)
  places = np.fromiter(found.keys(), np.int32, len(found))
  values = np.fromiter(found.values(), np.float32, len(found)) / np.float32(max(1, len(text)))
  labels = {tags[tag] for tag in tag_line.split('|') if tag in tags}
  return places, values, np.fromiter(labels, np.int32, len(labels))


def _dense(
  documents: list[_Document], num_words: int, num_tags: int
) -> tuple[np.ndarray, np.ndarray]:
  x = np.zeros((len(documents), num_words), np.float32)
  y = np.zeros((len(documents), num_tags), np.float32)
  for row, (places, values, labels) in enumerate(documents):
    x[row, places] = values
    y[row, labels] = 1.0
  return x, y
