"""Files of a user's own: whether they are there; and the methods, models and metrics in them.

A Python file is imported once, as it is; what goes wrong in it is one line which names the file and
its line. Importing this module imports no TensorFlow; a user's file may.
"""

import hashlib
import importlib.util
import itertools
import os
import pathlib
import sys
import traceback
import types
from collections.abc import Callable, Iterable
from typing import Any

import datasets.registry
import processes
import tff_models.registry
from processes.declaration import Method
from settings import did_you_mean

_PROJECT = pathlib.Path(processes.__file__).resolve().parents[1]
_MODULES: dict[pathlib.Path, types.ModuleType] = {}
_METHODS: dict[pathlib.Path, Method] = {}


def is_method(text: Any) -> bool:
  """Whether a value of `--method` names a user's file."""
  return isinstance(text, str) and text.endswith('.py')


def methods_in(arguments: Iterable[str]) -> list[str]:
  """The users' files that a command line names as methods, in `--method` or in `--sweep`."""
  found, arguments = [], list(arguments)
  for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=''):
    name, equals, values = argument.lstrip('-').removeprefix('sweep=').partition('=')
    if name == 'method':
      found += (values if equals else following).split(',')
  return [text for text in found if is_method(text)]


def method(text: str) -> Method:
  """The method of a user's file, registered with its settings.

  Raises:
    ValueError: the file is missing or faulty, has no `METHOD`, or one whose name is taken.
  """
  path = pathlib.Path(text).resolve()
  if path in _METHODS:
    return _METHODS[path]
  module = _load('method', text)
  declared = getattr(module, 'METHOD', None)
  if not isinstance(declared, Method):
    raise ValueError(
      f'--method={text} has no METHOD, the declaration of a method: '
      "METHOD = Method(name='...', ...), with Method from processes."
    )
  # Where a declaration says nothing else, `build` is beside it.
  default = f'processes.{declared.name}.process'
  if declared.module == default:
    _check_has('method', text, module, 'build')
    object.__setattr__(declared, 'module', module.__name__)
  try:
    _METHODS[path] = processes.register(declared)
  except ValueError as error:
    raise ValueError(f'--method={text}: {error}') from error
  return declared


def function(flag: str, text: str) -> Callable[..., Any]:
  """The function of `file.py:name`.

  Raises:
    ValueError: the text has another form, the file is missing or faulty, or lacks the function.
  """
  path, name = check_form(flag, text)
  return _check_has(flag, text, _load(flag, path), name)


def check_form(flag: str, text: str) -> tuple[str, str]:
  """The file and the function of `file.py:name`, which need not exist.

  Raises:
    ValueError: the text has another form.
  """
  path, colon, name = text.rpartition(':')
  if not (colon and path.endswith('.py') and name.isidentifier()):
    raise ValueError(f'--{flag}={text} must have the form file.py:function.')
  return path, name


def check_there(config: Any) -> None:
  """Refuses an `ExperimentConfig` whose files or folders are not there.

  Whoever loads them says so as well, when TensorFlow has been waited for.

  Raises:
    ValueError: naming the flag and its value.
  """
  own = [('metric', text) for text in config.metric]
  if config.model is not None and config.model not in tff_models.registry.MODELS:
    own.append(('model', config.model))
  for flag, text in own:
    _check_is_file(flag, text, check_form(flag, text)[0])
  for flag, path in config.paths.items():
    if not pathlib.Path(path).exists():
      raise ValueError(f'--{flag}={path} cannot be read: No such file or directory.')
  if datasets.registry.is_table(config.dataset):
    options = datasets.registry.find(config.dataset).resolve(config.dataset_options)
    if 'file' in options:
      _check_is_file('dataset', config.dataset, options['file'])
    elif not (path := pathlib.Path(options['folder']).expanduser()).is_dir():
      raise ValueError(f'--dataset={config.dataset}: there is no folder {path.absolute()}.')


def _check_is_file(flag: str, text: str, name: str) -> pathlib.Path:
  path = pathlib.Path(name).resolve()
  if not path.is_file():
    raise ValueError(f'--{flag}={text}: there is no file {path}.')
  return path


def digest(text: str) -> str:
  """What a file says and not where it is: 'my_method.py@1a2b3c4d5e6f'."""
  path, _, name = text.partition('.py:')
  file = pathlib.Path(f'{path}.py' if name else text)
  try:
    content = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
  except OSError:
    return text
  return f'{file.name}{":" * bool(name)}{name}@{content}'


def imported(config: Any) -> dict[str, str]:
  """Digests of the modules beside a run's own files, which these have imported, by name.

  Args:
    config: an `ExperimentConfig`; its files are those of its method, model and metrics.
  """
  own = [] if config.method_file is None else [config.method_file]
  if config.model is not None and config.model not in tff_models.registry.MODELS:
    own.append(check_form('model', config.model)[0])
  own += [check_form('metric', text)[0] for text in config.metric]
  beside = tuple(f'{pathlib.Path(text).resolve().parent}{os.sep}' for text in own)
  found = {}
  for name, loaded in list(sys.modules.items()) if own else []:
    file = getattr(loaded, '__file__', None) or ''
    others = pathlib.Path(file) in _MODULES or f'{os.sep}site-packages{os.sep}' in file
    if file.startswith(beside) and not others and not _is_ours(name):
      found[name] = digest(file)
  if not _is_ours(module := config.declaration.module):  # may lie elsewhere
    known = sys.modules.get(module) or importlib.util.find_spec(module)
    file = getattr(known, '__file__', None) or getattr(known, 'origin', None)
    if file and pathlib.Path(file) not in _MODULES:
      found[module] = digest(file)
  return found


def _is_ours(module: str) -> bool:
  """Whether a module is the project's own, by its name."""
  return (_PROJECT / module.partition('.')[0] / '__init__.py').exists()


def place_of(error: BaseException) -> str:
  """' (my_method.py, line 12)' where an error came from a user's file, else nothing."""
  files = {str(path) for path in _MODULES}
  if isinstance(error, SyntaxError) and error.filename in files:
    return f' ({error.filename}, line {error.lineno})'
  frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
  return f' ({frames[-1].filename}, line {frames[-1].lineno})' if frames else ''


def _load(flag: str, text: str) -> types.ModuleType:
  path = pathlib.Path(text).resolve()
  if path in _MODULES:
    return _MODULES[path]
  _check_is_file(flag, text, text)
  if path.suffix != '.py':
    raise ValueError(f'--{flag}={text} must be a Python file, such as my_method.py.')
  name = f'{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}'
  spec = importlib.util.spec_from_file_location(name, path)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  _MODULES[path] = sys.modules[name] = module
  if str(path.parent) not in sys.path:
    sys.path.append(str(path.parent))  # for what the file imports from beside it
  try:
    spec.loader.exec_module(module)
  except (Exception, SystemExit) as error:
    where = place_of(error)
    del _MODULES[path], sys.modules[name]
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    raise ValueError(f'--{flag}={text}: {type(error).__name__}: {what}{where}') from error
  return module


def _check_has(flag: str, text: str, module: types.ModuleType, name: str) -> Callable[..., Any]:
  found = getattr(module, name, None)
  if not callable(found):
    functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith('_')]
    raise ValueError(f'--{flag}={text} has no function {name}{did_you_mean(name, functions)}')
  return found
