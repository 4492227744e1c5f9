import io
import json
import tarfile

import numpy as np
import pytest

import datasets
from datasets import files, stackoverflow_tags


def _documents(*documents):
  tokens, titles, tags = zip(*documents, strict=True)
  return {'tokens': list(tokens), 'title': list(titles), 'tags': list(tags)}


def _archive(path, name, content):
  with tarfile.open(path, 'w:bz2') as archive:
    member = tarfile.TarInfo(f'./{name}')
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def data_dir(tmp_path, write_tff_sqlite, monkeypatch):
  write_tff_sqlite(
    'stackoverflow.sqlite',
    {
      'train': {
        'u1': _documents(
          ('how to sort', 'sort list', 'python|list'),
          ('to to unknown', 'words', 'java'),
          ('list', 'list', 'python'),
        ),
        'u2': _documents(('sort', 'how', 'css')),
        'u9': _documents(('a', 'b', 'c')),
      },
      'test': {
        'u1': _documents(('how', 'how', 'list')),
        'u2': _documents(('list list', 'sort', 'python'), ('x', 'y', 'z')),
      },
    },
  )
  _archive(
    tmp_path / 'stackoverflow.word_count.tar.bz2',
    'stackoverflow.word_count',
    b'to 90\nlist 80\nsort 70\nhow 60\nrare 1\n',
  )
  _archive(
    tmp_path / 'stackoverflow.tag_count.tar.bz2',
    'stackoverflow.tag_count',
    json.dumps({'css': 3, 'python': 9, 'list': 5, 'java': 7}).encode(),
  )
  for name in ('WORDS_FILE', 'TAGS_FILE'):
    file = getattr(stackoverflow_tags, name)
    monkeypatch.setattr(stackoverflow_tags, name, files.DataFile(name=file.name))
  return tmp_path


def test_bags_of_words_and_tags(data_dir):
  dataset = datasets.load_dataset(
    'stackoverflow_tags', seed=0, data_dir=data_dir, num_clients=2, num_words=4, num_tags=3,
    max_train_examples=2,
  )  # fmt: skip
  assert dataset.client_ids == ('u1', 'u2')
  train = dataset.train.load(np.array([0, 1]))
  np.testing.assert_array_equal(train.num_examples, [2, 1])
  # Words: to, list, sort, how. Tags: python, java, list.
  np.testing.assert_allclose(train.x[0, 0], np.array([1, 1, 2, 1]) / 5)
  np.testing.assert_allclose(train.x[0, 1], np.array([2, 0, 0, 0]) / 4)
  np.testing.assert_array_equal(train.y[0], [[1, 0, 1], [0, 1, 0]])
  np.testing.assert_array_equal(train.y[1, 0], [0, 0, 0])
  test = dataset.test.load(np.array([1]))
  np.testing.assert_array_equal(test.num_examples, [2])
  np.testing.assert_array_equal(test.x[0, 1], np.zeros(4))
  assert 'outside the guarantee' in dataset.preprocessing[0]
  # The documents are known beside the lists of words and tags.
  assert set(dataset.checksums) == {
    'stackoverflow.sqlite', 'stackoverflow.word_count.tar.bz2', 'stackoverflow.tag_count.tar.bz2'
  }  # fmt: skip
  assert 'bytes' in dataset.checksums['stackoverflow.sqlite']


def test_too_large_a_vocabulary(data_dir):
  with pytest.raises(ValueError, match='num_words is 6'):
    datasets.load_dataset('stackoverflow_tags', seed=0, data_dir=data_dir, num_words=6)


def test_examples_of_another_form(data_dir, write_tff_sqlite):
  for name in ('stackoverflow.sqlite', 'test.part'):
    (data_dir / name).unlink()
  of_user = {'u1': {'tokens': ['how to sort'], 'tags': ['python']}}
  write_tff_sqlite('stackoverflow.sqlite', {'train': of_user, 'test': of_user})
  with pytest.raises(ValueError, match='holds an example without tokens, title and tags'):
    datasets.load_dataset(
      'stackoverflow_tags', seed=0, data_dir=data_dir, num_clients=1, num_words=4, num_tags=3
    )


def test_wrong_archive(tmp_path):
  _archive(tmp_path / 'a.tar.bz2', 'other', b'')
  with pytest.raises(ValueError, match='does not contain'):
    stackoverflow_tags.read_words(tmp_path / 'a.tar.bz2', 3)
  (tmp_path / 'b.tar.bz2').write_bytes(b'nothing')
  with pytest.raises(ValueError, match='cannot be read'):
    stackoverflow_tags.read_words(tmp_path / 'b.tar.bz2', 3)
