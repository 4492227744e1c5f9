"""Every command that the project prints works: from a clean clone, with nothing but it in the PATH.

What is cheap is run. What is not goes through the launcher or `make` to the program that it starts,
and through that program to the end of its checks: the training behind it is left out.
"""

import contextlib
import dataclasses
import io
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import types

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import cli
from experiments.audits import command as audit_command
from experiments.config import user_files
from experiments.recipes import claims, evidence, recipes, reproduce, verdicts
from experiments.reports import report
from experiments.sweeps import sweep
from tests.docs import commands
from tests.docs.commands import Command

ROOT = commands.ROOT
CLEAN = {'PATH': '/usr/bin:/bin'}
EVERYWHERE = commands.everywhere()
FOLLOWED = ('docs/start/silos.md', 'docs/start/method.md', 'docs/start/epsilon.md')
# What a page teaches to add (`test_adding` follows it), and what is there already.
_TAUGHT = {
  'docs/adding_a_data_set.md': ('diabetes', 'exam'),
  'docs/adding_a_method.md': ('participation_gap', 'fedavg'),
  'docs/adding_a_model.md': ('wide_and_deep --model_option=dropout=0.2', 'mlp'),
}
_CHEAP = re.compile(r'\./fl (help|--help|recipes|claims)( --data_dir=FOLDER)?|make (help|recipes)')
_SHOW = 'SHOW_ARGUMENTS'


@pytest.fixture(name='clone', scope='module')
def _clone(tmp_path_factory):
  """A clean clone, with what is changed here and not committed; its environment is this Python."""
  folder = tmp_path_factory.mktemp('clean') / 'project'
  _git('clone', '--quiet', '--shared', '--no-checkout', str(ROOT), str(folder))
  index = folder.parent / 'index'  # of its own: git locks it, and files of tests run side by side
  shutil.copy(ROOT / _git('-C', str(ROOT), 'rev-parse', '--git-path', 'index').strip(), index)
  changed = _git('-C', str(ROOT), 'stash', 'create', GIT_INDEX_FILE=str(index)).strip() or 'HEAD'
  commit = _git('-C', str(ROOT), 'rev-parse', changed).strip()
  _git('-C', str(folder), 'checkout', '--quiet', '--detach', commit)
  programs = folder / '.venv' / 'bin'
  programs.mkdir(parents=True)
  python = programs / 'python'
  python.write_text(
    f'#!/bin/sh\n[ -z "${_SHOW}" ] || {{ printf "%s\\0" "$@"; exit; }}\n'
    f'exec {shlex.quote(sys.executable)} "$@"\n'
  )
  python.chmod(0o755)
  for stamp in ('.ready', '.ready-for-tests'):
    (folder / '.venv' / stamp).touch()
  return folder


def _git(*arguments, **environment):
  own = ['-c', 'user.name=a', '-c', 'user.email=a@b', '-c', 'advice.detachedHead=false']
  done = subprocess.run(
    ['git', *own, *arguments], env={**os.environ, **environment}, capture_output=True, text=True,
    check=True,
  )  # fmt: skip
  return done.stdout


def _run(text, clone, timeout=300, **environment):
  """Runs a command in the clone as a shell with a clean environment does."""
  return subprocess.run(
    ['/bin/bash', '-c', text], cwd=clone, env={**CLEAN, **environment}, capture_output=True,
    text=True, timeout=timeout, check=False,
  )  # fmt: skip


# ------------------------------------------------------- what a command starts


def programs_of(command: Command, clone: pathlib.Path) -> list[list[str]]:
  """The arguments of every Python program that a command starts.

  Raises:
    ValueError: it is neither the launcher nor `make`, or these refuse it.
  """
  words = command.words
  if words[0] == './fl':
    done = _run(command.text, clone, **{_SHOW: '1'})
    if done.returncode:
      raise ValueError(done.stderr)
    return [done.stdout.split('\0')[:-1]] if '\0' in done.stdout else []
  if words[0] != 'make':
    raise ValueError(f'{command.text!r} is neither ./fl nor make.')
  text = (ROOT / 'Makefile').read_text()
  variables = re.findall(r'^(\w+) \?=', text, re.MULTILINE)
  for word in words[1:]:
    name, equals, _ = word.partition('=')
    if equals and name not in variables:
      raise ValueError(f'{name} is no variable of the Makefile.')
  done = _run(command.text.replace('make ', 'make -n ', 1), clone)
  if done.returncode:
    raise ValueError(done.stderr)
  lines = [shlex.split(line, comments=True) for line in _whole_lines(done.stdout)]
  return [line[1:] for line in lines if line and line[0] == '.venv/bin/python']


def _whole_lines(text: str) -> list[str]:
  lines = re.sub(r'\\\n\s*', ' ', text).splitlines()
  return [line for line in lines if line.startswith('.venv/bin/python ')]


# ----------------------------------------------- as far as the end of its checks


def check(arguments: list[str]) -> None:
  """Takes a Python program's arguments as the program does, and does not train.

  Raises:
    ValueError: the program refuses them, or there is no such program.
  """
  if arguments[0] == '-m':
    module, rest = arguments[1], arguments[2:]
    path = ROOT / module.replace('.', '/')
    if module in _PROGRAMS:
      _PROGRAMS[module]([module, *rest])
    elif module == 'pytest':
      _check_pytest(rest)
    else:
      source = path / '__main__.py' if path.is_dir() else path.with_suffix('.py')
      if not source.exists():
        raise ValueError(f'there is no module {module}.')
      _check_options(source, rest)
  elif arguments[0].endswith('.py'):
    source = pathlib.Path(arguments[0])
    source = source if source.is_absolute() else ROOT / source
    if source.name == 'run_experiment.py':
      _experiment(['run_experiment.py', *arguments[1:]])
    elif not source.exists():
      raise ValueError(f'there is no program {source.name}.')
    else:
      _check_options(source, arguments[1:])


def _check_options(source: pathlib.Path, rest: list[str]) -> None:
  """A small program's flags are those that it adds to its parser."""
  text = source.read_text()
  for argument in rest:
    name = argument.partition('=')[0]
    if name.startswith('-') and f"'{name}'" not in text:
      raise ValueError(f'{source.name} has no {name}.')


def _check_pytest(rest: list[str]) -> None:
  for argument in rest:
    if argument.startswith('tests') and not (ROOT / argument.partition('::')[0]).exists():
      raise ValueError(f'there is no {argument}.')


def _experiment(argv: list[str]) -> None:
  with pytest.MonkeyPatch.context() as patch, flagsaver.flagsaver():
    flags.FLAGS.unparse_flags()
    patch.setattr(cli, '_run', lambda config, *_: ('', ''))
    patch.setattr(user_files, 'check_there', lambda config: None)  # a page's own come later
    patch.setattr(sweep, 'run', _grid_only)
    patch.setattr(sweep, '_with_spent', lambda result, data_dir: result)
    _accepted(cli.main, argv)


def _grid_only(grid, **_):
  grid.runs()
  return types.SimpleNamespace(report='', folder='')


def _audit(argv: list[str]) -> None:
  if len(argv) == 1:
    return
  done = types.SimpleNamespace(text=lambda: '', broken=False)
  with pytest.MonkeyPatch.context() as patch, flagsaver.flagsaver():
    flags.FLAGS.unparse_flags()
    patch.setattr(audit_command, '_audit_configuration', lambda *_: done)
    _accepted(audit_command.main, argv)


def _recipe(argv: list[str]) -> None:
  def plans_only(recipe, *, extra=(), neutral=(), **_):
    for part in recipe.parts:
      recipe.grid(part, [*neutral, *extra]).runs()
    return True

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(reproduce, 'reproduce', plans_only)
    patch.setattr(recipes, 'missing_data', lambda *_: [])
    _accepted(reproduce.main, argv)


def _claims(argv: list[str]) -> None:
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(claims, 'run', lambda names, **_: claims.selected(verdicts.read(), names))
    patch.setattr(evidence, 'read', _no_evidence)  # judging what is stored takes long
    patch.setattr(claims, 'write_pages', lambda: '')
    _accepted(claims.main, argv)


def _no_evidence(recipe: recipes.Recipe):
  raise evidence.Lacking(f'{recipe.name} has no evidence')


def _report(argv: list[str]) -> None:
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(report, 'write', lambda *_, **__: '')
    _accepted(report.main, argv)


def _accepted(main, argv) -> None:
  said = io.StringIO()
  with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
    try:
      code = main(argv)
    except SystemExit as stopped:
      code = stopped.code
  if code:
    raise ValueError(said.getvalue())


_PROGRAMS = {
  'experiments.audits': _audit,
  'experiments.recipes': _recipe,
  'experiments.recipes.claims': _claims,
  'experiments.reports': _report,
}


# ------------------------------------------------------------------ the tests


@pytest.mark.parametrize('command', EVERYWHERE, ids=lambda c: f'{c.where} {c.text[:60]}')
def test_command(command, clone):
  if command.words[0] not in ('./fl', 'make'):
    pytest.fail(f'{command.where}: {command.text!r} does not work everywhere; use ./fl or make')
  if command.has_placeholders and not command.is_block:
    assert command.words[0] == './fl' or command.words[1] in _targets()
    return
  page = command.where.rpartition(':')[0]
  if page in FOLLOWED and re.search(r'\b(my_method|make_my_table|check)\.py', command.text):
    return  # a file of the page: test_page_is_followed runs it
  text = command.text.replace(*_TAUGHT.get(page, (' ', ' ')))
  for arguments in programs_of(dataclasses.replace(command, text=text), clone):
    check(arguments)


def _targets() -> list[str]:
  return re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(), re.MULTILINE)


def test_there_are_many():
  assert len(EVERYWHERE) > 100
  assert sum(command.is_block for command in EVERYWHERE) > 40


@pytest.mark.parametrize(
  'text, said',
  [
    ('./fl --method=mr_mtl --mtl_lamda=1', 'mtl_lamda'),
    ('./fl --method=fedavg --mtl_lambda=1', 'mtl_lambda'),
    ('./fl --flagfile=recipes/nowhere.flags', 'nowhere.flags'),
    ('./fl --dataset=exam --sweep=rounds=0,1', 'rounds'),
    ('./fl --dataset=exam --sweep=roundz=1', 'roundz'),
    ('./fl reproduce silo_fig3', 'silo_fig3'),
    ('./fl reproduce silo_school_reference --roundz=1', 'roundz'),
    ('./fl claims --run=nothing_of_it', 'nothing_of_it'),
    ('./fl claims --runs=theory', '--runs'),
    ('./fl report', 'DIR'),
    ('./fl audit --method=fedavg --audit_rnus=3', 'audit_rnus'),
    ('./fl python -m benchmarks.rum', 'benchmarks.rum'),
    ('./fl python -m benchmarks.run --olny=w1_xla', '--olny'),
    ('./fl python tests/trust/no_such_table.py', 'no_such_table.py'),
    ('./fl python -m pytest tests/trust/test_nothing.py', 'test_nothing.py'),
    ('./fl reprot DIR', 'no command'),
    ('make experimnet', 'experimnet'),
    ('make reproduce RECIPES=silo_fig7', 'RECIPES'),
    ('make reproduce RECIPE=silo_fig77', 'silo_fig77'),
    ("make experiment ARGS='--roundz=3'", 'roundz'),
    ('uv run python run_experiment.py', 'neither'),
    ('python run_experiment.py', 'neither'),
  ],
)
def test_a_wrong_command_is_caught(text, said, clone):
  command = Command(where='nowhere:1', text=text, is_block=True)
  with pytest.raises(ValueError, match=re.escape(said)):
    for arguments in programs_of(command, clone):
      check(arguments)


def test_commands_are_found_where_they_are():
  page = (
    'Say `./fl help` or\n`make\nrecipes`.\n\n'
    '```sh\n./fl --rounds=1 \\\n  --seed=2  # a\nmake test\n```\n'
  )
  tags = list(commands.blocks(page))
  assert [tag for tag, *_ in tags] == ['sh']
  found = commands.of_prose(commands.without_blocks(page), 'p')
  assert [(c.where, c.text) for c in found] == [('p:1', './fl help'), ('p:2', 'make recipes')]
  block = commands.of_block(tags[0][2], 'p', tags[0][1])
  assert [c.words for c in block] == [['./fl', '--rounds=1', '--seed=2'], ['make', 'test']]
  assert [c.where for c in block] == ['p:6', 'p:8']


@pytest.mark.parametrize('page', commands.pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_says_what_it_is(page):
  text = page.read_text()
  for tag, line, content in commands.blocks(text):
    assert tag in commands.TAGS, f'line {line}: {tag!r}'
    if tag == 'text':
      assert not re.match(r'\./fl|make |python|pytest|uv ', content), f'line {line} is a command'
  prose = commands.without_blocks(text)
  assert not re.search(r'(?:\A|\n)\s*\n {4}(?![-*|\d ])\S', prose), 'a block without a tag'


def test_few_blocks_are_not_checked():
  """Those that need another machine, or something of the reader's own."""
  elsewhere = sorted(
    (str(page.relative_to(ROOT)), content)
    for page in commands.pages()
    for tag, _, content in commands.blocks(page.read_text())
    if tag == commands.ELSEWHERE
  )
  assert [where for where, _ in elsewhere] == [
    'README.md', 'docs/adding_a_data_set.md', 'docs/adding_a_method.md',
    'docs/how_it_is_built.md', 'docs/larger_than_memory.md', 'docs/start/tff.md',
  ]  # fmt: skip
  for where, content in elsewhere:
    assert re.search(r'my_|COMMIT|pip install', content), where


@pytest.mark.slow
@pytest.mark.parametrize(
  'text', sorted({c.text for c in EVERYWHERE if _CHEAP.fullmatch(' '.join(c.words))})
)
def test_a_cheap_command_runs(text, clone):
  done = _run(text, clone)
  assert done.returncode == 0, done.stderr
  assert len(done.stdout.splitlines()) > 5


def test_what_is_cheap_is_printed_somewhere():
  assert {'./fl help', './fl --help', './fl recipes', './fl claims', 'make recipes'} <= {
    ' '.join(c.words) for c in EVERYWHERE
  }


@pytest.mark.exhaustive(but=['docs/start/silos.md'])
@pytest.mark.slow
@pytest.mark.parametrize('page', FOLLOWED)
def test_page_is_followed(page, clone):
  """Its files are written, and the last run of each block is done, of one round, in the clone."""
  text = (ROOT / page).read_text()
  written = []
  for tag, line, content in commands.blocks(text):
    title = re.search(r'title="(.*)"', text.splitlines()[line - 2])
    if title:
      (clone / title[1]).write_text(content)
      written.append(title[1])
    elif tag == commands.CHECKED:
      # An audit and a report take minutes; tests are run as such, and sweeps elsewhere.
      runs = [
        command
        for command in commands.of_block(content, page, line)
        if not {'audit', 'report', 'pytest'} & {*command.words} and '--sweep' not in command.text
      ]
      for command in runs[-1:]:
        quicker = re.sub(r'--rounds=\d+', '--rounds=1', command.text)
        done = _run(quicker, clone, timeout=600, CUDA_VISIBLE_DEVICES='')
        assert done.returncode == 0, done.stdout + done.stderr
  assert written
  for name in written:
    (clone / name).unlink()
  (clone / 'my_table.csv').unlink(missing_ok=True)
  assert not _git('-C', str(clone), 'status', '--porcelain').strip()
