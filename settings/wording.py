"""Values and names as a command line has them."""

import ast
import difflib
import re
from collections.abc import Container, Iterable
from typing import Any

_AT_MOST = 4


def did_you_mean(word: str, known: Iterable[str], otherwise: str = '.') -> str:
  """The end of a sentence: '; did you mean fedavg?', or `otherwise` where no known word is close.

  Capitals, dashes and blanks do not matter. A part of names (`cnn`, `learning_rate`) means
  those that add the least to it, unless the word is nearly one of them.
  """
  names = {_plain(name): name for name in known}
  plain = _plain(word)
  part = [key for key in names if plain and f'_{plain}' in f'_{key}']
  part = [names[key] for key in sorted(part, key=lambda key: key.count('_'))[:_AT_MOST]]
  near, close = (
    [names[key] for key in difflib.get_close_matches(plain, names, n=1, cutoff=cutoff)]
    for cutoff in (0.8, 0.6)
  )
  meant = near or part or close
  if not meant:
    return otherwise
  *others, last = meant
  return f'; did you mean {", ".join(others)}{" or " * bool(others)}{last}?'


def _plain(name: object) -> str:
  return re.sub(r'[-_\s]+', '_', str(name).lower()).strip('_')


def show(value: Any) -> str:
  """A value as it would be given to a flag."""
  if value is None:
    return 'not given'
  if isinstance(value, bool):
    return str(value).lower()
  return ','.join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def parse_options(
  flag: str, texts: tuple[str, ...], *, as_written: Container[str] = ()
) -> dict[str, Any]:
  """Options from texts of the form name=value.

  Args:
    flag: where they were given, for messages.
    texts: the options.
    as_written: names of those whose numbers and truth values stay text, such as columns called 0
      and 1; of others they are parsed.
  """
  result = {}
  for text in texts:
    name, equals, value = text.partition('=')
    if not (name and equals and value):
      raise ValueError(f'--{flag}={text} must have the form name=value.')
    if name in result:
      raise ValueError(f'--{flag}={text} gives {name} a second time.')
    parsed = _parse_value(value)
    stays = name in as_written and not (parsed is None or isinstance(parsed, str))
    result[name] = value if stays else parsed
  return result


def _parse_value(text: str) -> Any:
  if text.lower() in ('true', 'false'):
    return text.lower() == 'true'
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text
