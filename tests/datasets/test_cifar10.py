import io
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

import datasets
from datasets import cifar10, files

_TRAIN, _TEST = 400, 100


def _add(archive, name, content):
  member = tarfile.TarInfo(name)
  member.size = len(content)
  archive.addfile(member, io.BytesIO(content))


def _images(count, seed):
  generator = np.random.default_rng(seed)
  # Flat colours survive JPEG.
  x = np.repeat(generator.integers(0, 256, (count, 1, 1, 3)), 32 * 32, axis=1)
  return x.reshape(count, 32, 32, 3).astype(np.uint8), np.arange(count) % 10


@pytest.fixture
def batches_dir(tmp_path, monkeypatch):
  with tarfile.open(tmp_path / 'c.tar.gz', 'w:gz') as archive:
    x, y = _images(_TRAIN, 0)
    parts = {f'data_batch_{k + 1}': slice(k * 80, (k + 1) * 80) for k in range(5)}
    batches = {name: (x[rows], y[rows]) for name, rows in parts.items()}
    batches['test_batch'] = _images(_TEST, 1)
    for name, (images, labels) in batches.items():
      data = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
      content = {b'data': data, b'labels': labels.tolist()}
      _add(archive, f'cifar-10-batches-py/{name}', pickle.dumps(content, protocol=3))
    _add(archive, 'cifar-10-batches-py/readme.html', b'')
  monkeypatch.setattr(cifar10, 'FILE', files.DataFile(name='c.tar.gz'))
  return tmp_path


@pytest.fixture
def jpeg_dir(tmp_path, monkeypatch):
  with tarfile.open(tmp_path / 'c.tar.xz', 'w:xz') as archive:
    for split, count, seed in (('train', _TRAIN, 0), ('test', _TEST, 1)):
      for number, (image, label) in enumerate(zip(*_images(count, seed), strict=True)):
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, 'JPEG', quality=95)
        _add(archive, f'{split}/{cifar10.CLASSES[label]}/{number:04d}.jpg', stream.getvalue())
    _add(archive, '../../train/cat/0001.jpg', b'not an image')
    _add(archive, '/train/cat/0001.jpg', b'not an image')
    _add(archive, 'train/unicorn/0001.jpg', b'not an image')
    link = tarfile.TarInfo('train/cat/9999.jpg')
    link.type, link.linkname = tarfile.SYMTYPE, '/etc/passwd'
    archive.addfile(link)
  monkeypatch.setattr(cifar10, 'JPEG_FILE', files.DataFile(name='c.tar.xz'))
  return tmp_path


def test_silos_of_few_classes(batches_dir):
  dataset = datasets.load_dataset(
    'cifar10_heterogeneous', seed=0, data_dir=batches_dir, num_clients=6
  )
  counts = np.zeros(10, int)
  for split, total in ((dataset.train, _TRAIN), (dataset.test, _TEST)):
    assert split.num_examples.sum() == total  # Every image is used once.
    for k in range(6):
      labels = split.y[k, : split.num_examples[k]]
      np.testing.assert_array_equal(np.unique(labels), dataset.extras['classes'][k])
  counts = np.bincount(dataset.extras['classes'].ravel(), minlength=10)
  np.testing.assert_array_equal(counts, 3)
  x, y = dataset.train.pooled()
  original, labels = _images(_TRAIN, 0)
  expected = {(image.tobytes(), int(label)) for image, label in zip(original, labels, strict=True)}
  assert {(image.tobytes(), int(label)) for image, label in zip(x, y, strict=True)} == expected


def test_jpegs_are_the_same_images(jpeg_dir):
  train, test = cifar10.read_jpegs(jpeg_dir / 'c.tar.xz')
  x, y = _images(_TRAIN, 0)
  order = np.lexsort((np.arange(_TRAIN), y))
  np.testing.assert_array_equal(train[1], y[order])
  assert np.abs(train[0].astype(int) - x[order]).max() <= 4
  assert len(test[1]) == _TEST


def test_jpegs_are_decoded_once(jpeg_dir, monkeypatch):
  options = {'seed': 0, 'data_dir': jpeg_dir, 'num_clients': 6}
  first = datasets.load_dataset('cifar10_jpeg', **options)
  monkeypatch.setattr(cifar10, 'read_jpegs', None)
  again = datasets.load_dataset('cifar10_jpeg', **options)
  np.testing.assert_array_equal(first.train.x, again.train.x)
  # Nothing of the archive was written anywhere but into the cache.
  assert sorted(path.name for path in jpeg_dir.iterdir()) == ['c.tar.xz', 'cache']
  assert len(list(files.cache_folder().iterdir())) == 1


def test_wrong_archives(tmp_path):
  (tmp_path / 'a').write_bytes(b'nothing')
  with tarfile.open(tmp_path / 'b', 'w') as archive:
    _add(archive, 'other', b'')
  with tarfile.open(tmp_path / 'c', 'w') as archive:
    _add(archive, 'train/cat/0000.jpg', b'not an image')
  for name in ('a', 'b', 'c'):
    with pytest.raises(ValueError, match=str(tmp_path / name)):
      cifar10.read_jpegs(tmp_path / name)
  for name in ('a', 'b'):
    with pytest.raises(ValueError, match=str(tmp_path / name)):
      cifar10.read_batches(tmp_path / name)


def test_pickles_of_python_2_are_read(tmp_path):
  """As in the public archive: by Python 2's cPickle, text and all."""
  pixels = np.arange(3072) % 251
  batch = (
    b'\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04'
    b'K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07'
    b'(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00\x00'
    + pixels.astype(np.uint8).tobytes()
    + b'tbU\x06labelsq\x08]q\x09K\x07aU\x0bbatch_labelU\x01xu.'
  )
  with tarfile.open(tmp_path / 'a', 'w') as archive:
    for name in ('data_batch_1', 'test_batch'):
      _add(archive, name, batch)
  (x, y), _ = cifar10.read_batches(tmp_path / 'a')
  np.testing.assert_array_equal(x[0].transpose(2, 0, 1).ravel(), pixels)
  np.testing.assert_array_equal(y, [7])


class _Exploit:
  def __reduce__(self):
    return open, ('exploited', 'w')


@pytest.mark.parametrize(
  'content',
  [
    _Exploit(),
    {b'data': _Exploit(), b'labels': [0]},
    {b'data': np.array([_Exploit()]), b'labels': [0]},
    {b'data': np.zeros([1, 3072], np.uint8), b'labels': np.array(_Exploit(), object)},
    pickle.Unpickler,
    {b'data': [1]},
    {b'data': np.zeros([2, 7], np.uint8), b'labels': [0, 1]},
    3,
  ],
)
@pytest.mark.parametrize('protocol', [0, 2, 4])
def test_a_pickle_of_anything_but_arrays_is_refused(tmp_path, monkeypatch, content, protocol):
  """Before anything in it is called, whatever the archive's checksum."""
  monkeypatch.chdir(tmp_path)
  with tarfile.open(tmp_path / 'evil', 'w') as archive:
    for name in ('data_batch_1', 'test_batch'):
      _add(archive, name, pickle.dumps(content, protocol=protocol))
  with pytest.raises(ValueError, match="evil is not CIFAR-10's archive"):
    cifar10.read_batches(tmp_path / 'evil')
  assert not (tmp_path / 'exploited').exists()
