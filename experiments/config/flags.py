"""The command line's flags, one for each setting of `experiments.config`.

Importing this module defines them on absl's `FLAGS`; it does not import
TensorFlow, so that help and errors answer at once.
"""

import dataclasses
import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

import datasets.registry
import processes
import tff_models.registry
from experiments.config import experiment as config
from experiments.config import launcher, sweep_flags, user_files
from settings import Group, Setting, did_you_mean, show

# Settings of which one is given.
_ALTERNATIVES = (
  ('noise_multiplier', 'target_epsilon', 'silo_epsilons'),
  ('clients_per_round', 'cohort_sampling_rate'),
)
_PARSERS = {int: flags.IntegerParser, float: flags.FloatParser, str: flags.ArgumentParser}


def define(flag_values: flags.FlagValues = flags.FLAGS):
  """Defines a flag for every setting that has none, in modules named after the groups."""
  for name, setting in config.settings().items():
    if name not in flag_values:
      flags.DEFINE_flag(
        _flag(name, setting), flag_values=flag_values, module_name=setting.group.value
      )


def define_own(argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS) -> None:
  """Loads the methods of users' own files that the arguments name, and defines their flags.

  Raises:
    ValueError: a file of a method that is missing or faulty, a flagfile that cannot be read.
  """
  try:
    arguments = flag_values.read_flags_from_files(list(argv[1:]))
  except flags.CantOpenFlagFileError as error:
    raise ValueError(f'--flagfile: {str(error).removeprefix("ERROR:: ")}') from error
  except UnicodeDecodeError as error:
    named = ' '.join(a for a in argv[1:] if a.lstrip('-').startswith('flagfile'))
    raise ValueError(f'{named} is no text, one --name=value in a line: {error}') from error
  for text in user_files.methods_in(arguments):
    user_files.method(text)
  define(flag_values)


def parse(argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS) -> None:
  """Gives the flags the values of a command line.

  Raises:
    ValueError: an unknown flag, text where a number has to be, or something that is no flag.
    flags.Error: any other value that a flag does not take.
  """
  try:
    rest = flag_values(list(argv))[1:]
  except flags.UnrecognizedFlagError as error:
    name = error.flagname
    end = did_you_mean(name, [*flag_values], f'; {launcher.command()} --help lists the flags.')
    raise ValueError(f'--{name} is no flag{end}') from error
  except flags.IllegalFlagValueError as error:
    wrong = re.match(r'flag (.*): (?:invalid literal for (int)|could not convert)', str(error))
    if not wrong:
      raise
    raise ValueError(f'{wrong[1]} must be a {"whole " * bool(wrong[2])}number.') from error
  if rest:
    raise ValueError(f'{rest[0]!r} is no flag; flags have the form --name=value.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
  """The settings that a command line gives.

  Attributes:
    values: by name.
    notes: sentences on what of a flagfile was left out.
  """

  values: dict[str, Any]
  notes: list[str]


def given(argv: Sequence[str], flag_values: flags.FlagValues = flags.FLAGS) -> Given:
  """The settings that were given, once the flags are parsed.

  What the line itself says comes before what its flagfiles say: settings of a flagfile which do
  not apply to the method or the privacy of the line, or of which the line gives the alternative
  (`--noise_multiplier` instead of `--target_epsilon`), are left out, and that is said. What the
  line says twice, as a setting and as values of a sweep, is refused; a flagfile's gives way.

  Raises:
    ValueError: a setting beside a sweep over it, both on the line itself.
  """
  values = config.given_flags(flag_values)
  spoken = {a.lstrip('-').partition('=')[0] for a in argv[1:] if a.startswith('-')}
  named = {n for n in values if n in spoken or f'no{n}' in spoken}
  _check_once(argv, {n: values[n] for n in named})
  from_files = {n: v for n, v in values.items() if n not in named}
  if not from_files or not named:
    return Given(values=values, notes=[])
  kept = dict(config.with_own_method(values))
  for name in ('method', 'privacy'):
    kept.setdefault(name, config.settings()[name].default)
  kept['method'], implied = processes.ALIASES.get(kept['method'], (kept['method'], {}))
  kept.update({n: v for n, v in implied.items() if n not in named})
  left = [
    name
    for name in from_files
    if config.why_not(name, kept)
    or any(name in group and named & {*group} for group in _ALTERNATIVES)
  ]
  if not left:
    return Given(values=values, notes=[])
  words = ', '.join(f'--{name}={show(values[name])}' for name in left)
  return Given(
    values={n: v for n, v in values.items() if n not in left},
    notes=[f'Left out of the flagfile, because it does not go with the flags beside it: {words}.'],
  )


def _check_once(argv: Sequence[str], named: Mapping[str, Any]) -> None:
  """Refuses settings that a line names, and of which it gives other values by a sweep, too."""
  arguments = list(argv[1:])
  for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=''):
    flag, equals, text = argument.lstrip('-').partition('=')
    text = text if equals else following
    swept = {'seeds': ['seed'], 'sweep': text.partition('=')[0].split('+')}.get(flag, [])
    for name in swept if argument.startswith('-') else ():
      if name in named and config.settings()[name].kind is not tuple:  # of which options are swept
        raise ValueError(
          f'--{name}={show(named[name])} and --{flag}={text} exclude each other; give one.'
        )


def _flag(name: str, setting: Setting) -> flags.Flag:
  # Bounds and choices are checked by the configuration, which has better words.
  serializer = flags.ArgumentSerializer()
  if setting.kind is bool:
    return flags.BooleanFlag(name, setting.default, describe(name))
  if setting.kind is tuple:
    return flags.MultiFlag(
      flags.ArgumentParser(), serializer, name, setting.default, describe(name)
    )
  return flags.Flag(_PARSERS[setting.kind](), serializer, name, setting.default, describe(name))


def describe(name: str) -> str:
  """The help of a flag: what it is, what is allowed, where it belongs."""
  setting = config.settings()[name]
  parts = [setting.help]
  if setting.allowed:
    parts.append(setting.allowed[0].upper() + setting.allowed[1:] + '.')
  methods = config.owners(name)
  owners = [f'--method={" or ".join(methods)}'] if methods else []
  if setting.privacy:
    owners.append(f'--privacy={" or ".join(setting.privacy)}')
  if setting.requires:
    owners.append(f'--{setting.requires}')
  if owners:
    parts.append(f'Only with {", ".join(owners)}.')
  return ' '.join(parts)


def help_text(*, full: bool) -> str:
  """The help of `run_experiment.py`: every flag by group with its default.

  Args:
    full: whether to add absl's own flags.
  """
  lines = [
    'Trains a private, personalised federation and writes a folder of results.',
    '',
    f'usage: {launcher.command()} [--flag=value ...] [--flagfile=recipes/NAME.flags]',
    '',
    'Without any flag it runs recipes/quickstart.flags. The first line that it prints',
    'says what is trained, on what, and who is protected. Flags of another method or',
    'privacy unit than the one asked for are refused; of a flagfile they are left out.',
    '--verbosity=1 shows the notices of TensorFlow, and tracebacks; --helpfull also',
    'lists the flags of absl.',
  ]
  for group in Group:
    lines += ['', f'{group.value}:']
    for name, setting in config.settings().items():
      if setting.group is group:
        lines.append(f'  --{name}{_defaults(name)}')
        lines += textwrap.wrap(
          describe(name), width=88, initial_indent='      ', subsequent_indent='      '
        )
  lines += ['', *sweep_flags.help_lines()]
  for title, entries in (
    ('Methods', processes.METHODS),
    ('Data sets', datasets.registry.DATASETS),
    ('Models', tff_models.registry.MODELS),
  ):
    lines += ['', f'{title}:']
    for name, entry in entries.items():
      lines.append(f'  {name:20} {entry.summary}')
      if options := ', '.join(getattr(entry, 'options', ())):
        lines.append(f'  {"":20} options: {options}')
  if full:
    ours = {sweep_flags.MODULE, *(group.value for group in Group)}
    for module in sorted(set(flags.FLAGS.flags_by_module_dict()) - ours):
      lines += ['', flags.FLAGS.module_help(module).rstrip()]
  return '\n'.join(lines)


def _defaults(name: str) -> str:
  """' [1.0; with mocha 0.001]', or nothing where there is none."""
  default = config.settings()[name].default
  words = [] if default in (None, '', ()) else [show(default)]
  for method in config.owners(name):
    own = config.default_of(name, method)
    if own != default:
      words.append(f'with {method} {show(own)}')
  return f' [{"; ".join(words)}]' if words else ''


define()
