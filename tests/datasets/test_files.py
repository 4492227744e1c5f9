import hashlib
import http.server
import lzma
import threading

import numpy as np
import pytest

from datasets import files

_CONTENT = b'some data' * 1000
_SHA256 = hashlib.sha256(_CONTENT).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    if self.path == '/missing':
      self.send_error(404)
      return
    body = lzma.compress(_CONTENT) if self.path.endswith('.lzma') else _CONTENT
    self.send_response(200)
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body[: len(body) // 2] if 'short' in self.path else body)

  def log_message(self, *args):
    pass


@pytest.fixture(scope='module')
def server():
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Handler) as httpd:
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f'http://127.0.0.1:{httpd.server_port}'
    httpd.shutdown()
    thread.join()


def test_named_folder_goes_before_the_environments(tmp_path, monkeypatch):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'b').mkdir()
  monkeypatch.setenv('PFL_DATA_DIR', str(tmp_path / 'b'))
  file = files.DataFile(name='f')
  (tmp_path / 'b' / 'f').write_bytes(_CONTENT)
  assert files.get(file, tmp_path / 'a').path == tmp_path / 'b' / 'f'
  (tmp_path / 'a' / 'f').write_bytes(_CONTENT)
  local = files.get(file, tmp_path / 'a')
  assert local.path == tmp_path / 'a' / 'f'
  assert local.sha256 == _SHA256
  assert files.get(file, tmp_path / 'a', digest=False).sha256 == ''


def test_wrong_checksum_on_disk(tmp_path):
  (tmp_path / 'f').write_bytes(_CONTENT[:-1])
  with pytest.raises(ValueError, match='cut short or is another version'):
    files.get(files.DataFile(name='f', sha256=(_SHA256,)), tmp_path)


def test_no_address_says_what_to_do(tmp_path):
  file = files.DataFile(name='f.npz', how='Ask the authors.')
  with pytest.raises(FileNotFoundError, match=r'f\.npz is not in .*--data_dir\. Ask the authors'):
    files.get(file, tmp_path)


def test_no_network_is_one_line(tmp_path):
  file = files.DataFile(name='f', url='http://127.0.0.1:9/f')
  with pytest.raises(FileNotFoundError, match='could not be fetched') as caught:
    files.get(file, tmp_path / 'mistyped' / 'folder')
  assert '\n' not in str(caught.value)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('name', ['f', 'f.lzma'])
def test_fetches_into_the_named_folder_once(tmp_path, server, name):
  file = files.DataFile(name='f', url=f'{server}/{name}', sha256=(_SHA256,))
  local = files.get(file, tmp_path)
  assert local.path == tmp_path / 'f'
  assert local.path.read_bytes() == _CONTENT
  again = files.DataFile(name='f', url=f'{server}/missing', sha256=(_SHA256,))
  assert files.get(again, tmp_path) == local
  assert [p.name for p in tmp_path.iterdir()] == ['f']


def test_fetches_into_the_cache_without_a_folder(server):
  local = files.get(files.DataFile(name='f', url=f'{server}/f'), None)
  assert local.path.parent == files.cache_folder()


@pytest.mark.parametrize('name', ['short', 'short.lzma', 'missing'])
def test_a_failed_fetch_leaves_nothing(tmp_path, server, name):
  file = files.DataFile(name='f', url=f'{server}/{name}')
  with pytest.raises(FileNotFoundError, match='could not be fetched'):
    files.get(file, tmp_path)
  assert list(tmp_path.iterdir()) == []


def test_wrong_checksum_from_the_network(tmp_path, server):
  file = files.DataFile(name='f', url=f'{server}/f', sha256=('0' * 64,))
  with pytest.raises(ValueError, match='nothing was kept'):
    files.get(file, tmp_path)
  assert list(tmp_path.iterdir()) == []


def test_cached_arrays_are_made_once():
  made = []

  def make():
    made.append(1)
    return {'a': np.arange(3)}

  for _ in range(2):
    np.testing.assert_array_equal(files.cached_arrays('x', make)['a'], np.arange(3))
  assert len(made) == 1
  assert [path.name for path in files.cache_folder().iterdir()] == ['x.npz']


def test_a_cache_that_cannot_be_written_to_is_done_without(tmp_path, monkeypatch):
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  assert files.cached_arrays('x', lambda: {'a': np.ones(1)})['a'] == 1
