"""What came out, on a recipe's page: its numbers, own messages, and the papers' claims.

It stands between two marks, so that it can be shown anew of the page alone: the rows of numbers and
messages stay as they are, what is said of them and the claims' verdicts are as stored now.
Importing this module does not import TensorFlow.
"""

from collections.abc import Iterable, Sequence

from experiments.recipes import recipes, verdicts
from experiments.recipes.recipes import Recipe

NOT_MET = '**not met**'
# Beside numbers and messages of changed settings, whose words would else be taken for what was run.
OTHER_SETTINGS = (
  "The words below are the recipe's; the runs have other settings than the recipe, whatever rounds "
  'and settings the words name.'
)
_BEGIN, _END = '<!-- what came out -->', '<!-- end of what came out -->'
_NUMBERS = ('number', 'paper', 'here', 'difference', 'tolerance', '')
_MESSAGES = ('message', 'by', 'needed', '')
_CLAIM = "the paper's claim on these data"
_ALL_CLAIMS = '[claims.md](../claims.md)'

Rows = Sequence[Sequence[str]]


def show(recipe: Recipe, numbers: Rows, messages: Rows, *, of_recipe: bool = True) -> str:
  """What stands between the marks, with them.

  Args:
    recipe: whose.
    numbers: rows of the table of the paper's numbers.
    messages: rows of the table of messages, which are our own.
    of_recipe: whether the settings are the recipe's; verdicts on claims are of those alone.
  """
  own, stored = verdicts.read_messages_of(recipe.name), verdicts.read_verdicts()
  about = [verdicts.judges_of(own[row[0]].claims) if row[0] in own else [] for row in messages]
  related = verdicts.judges_of({c.id: judge.data for judged in about for c, judge in judged})
  resting = verdicts.resting_on(recipe.name)
  shown = related or resting
  heading: Sequence[str] = _MESSAGES
  if related and of_recipe:
    heading = (*_MESSAGES, _CLAIM)
    cells = ['; '.join(verdicts.in_words(*one, stored) for one in judged) for judged in about]
    messages = [(*row, cell) for row, cell in zip(messages, cells, strict=True)]
  parts = [
    _BEGIN,
    _of_claims(resting, related, stored, numbers=bool(numbers), messages=bool(messages))
    if of_recipe
    else f'**{OTHER_SETTINGS}**',
    _of_own(recipe, numbers, messages, of_recipe=of_recipe),
    table(_NUMBERS, numbers),
    table(heading, messages),
    '\n'.join(verdicts.table(shown, stored)) if shown and of_recipe else '',
    _END,
  ]
  return '\n\n'.join(filter(None, parts))


def shown_anew(recipe: Recipe, page: str) -> str:
  """A recipe's page with what came out as `show` says it now of the rows that are there.

  Raises:
    ValueError: the page has not the marks between which it stands.
  """
  before, begin, rest = page.partition(_BEGIN)
  inside, end, after = rest.partition(_END)
  if not (begin and end):
    raise ValueError(f'{recipe.name}.md has no marks {_BEGIN} and {_END} for what came out.')
  return before + show(recipe, *_rows_of(inside)) + after


def how_many(recipe: Recipe, page: str) -> str:
  """How many numbers and own messages on a recipe's page are met."""
  return '; '.join(_counts(recipe, *_rows_of(page)))


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """A table in Markdown; nothing where it has no rows."""
  lines = [row(cells) for cells in rows]
  return '\n'.join([row(heading), row(['---'] * len(heading)), *lines]) if lines else ''


def row(cells: Sequence[str]) -> str:
  """A line of a table in Markdown."""
  return f'| {" | ".join(cells)} |'


def _rows_of(text: str) -> tuple[Rows, Rows]:
  """The rows of a page's tables of numbers and of messages."""
  found = []
  for heading in (_NUMBERS, _MESSAGES):
    start = row(heading).removesuffix('|')  # behind it there may be claims
    tables = [block for block in text.split('\n\n') if block.startswith(start)]
    lines = tables[0].splitlines()[2:] if tables else []
    found.append([tuple(line[2:-2].split(' | ')[: len(heading)]) for line in lines])
  return found[0], found[1]


def _counts(recipe: Recipe, numbers: Rows, messages: Rows) -> list[str]:
  """How many numbers and own messages are met; of messages with one number one counts."""
  own = verdicts.read_messages_of(recipe.name)
  counting = [cells for cells in messages if not (cells[0] in own and own[cells[0]].same_as)]
  said = []
  for rows, verdict, words in ((numbers, 5, 'numbers'), (counting, 3, 'own messages')):
    if rows:
      met = sum(cells[verdict] != NOT_MET for cells in rows)
      said.append(f'{met} of {len(rows)} {words} met')
  return said


def _of_own(recipe: Recipe, numbers: Rows, messages: Rows, *, of_recipe: bool) -> str:
  """How many numbers and messages are met, and what kind of messages these are."""
  own = verdicts.read_messages_of(recipe.name)
  said = [f'{words}.' for words in _counts(recipe, numbers, messages)]
  if numbers:
    said.insert(1, 'Their tolerances are our own.')
  if messages:
    listed = [own[cells[0]] for cells in messages if cells[0] in own]
    written = dict.fromkeys(f'{message.when} ({message.written})' for message in listed)
    with_margin = any(comparison.margin for comparison in recipe.comparisons)
    kind = [
      'They are no claims of a paper',
      f'written {" and ".join(written)}' if written else '',
      'with margins of our own' if with_margin else 'without a margin',
      _seeds_in_words(recipe) if of_recipe else '',  # whose seeds may have been changed, too
    ]
    said.append(f'{", ".join(filter(None, kind))}.')
    for what in dict.fromkeys(message.same_as for message in listed if message.same_as):
      rows = 1 + sum(message.same_as == what for message in listed)
      said.append(
        f"{rows} rows are one number but for rounding, '{what}', and count as one message."
      )
  return ' '.join(said)


def _seeds_in_words(recipe: Recipe) -> str:
  """Over how many seeds the messages' numbers are means; nothing of what is computed."""
  if recipe.analysis:
    return ''
  runs = recipes.read(recipe.evidence_of) if recipe.evidence_of else recipe
  parts = {s.part for c in recipe.comparisons for s in (c.better, c.worse)}
  fewest = min(len(runs.grid(part).seeds) for part in parts)
  return 'of one seed' if fewest == 1 else f'means of {fewest} seeds without their errors'


def _of_claims(
  resting: Sequence[verdicts.Judged],
  related: Sequence[verdicts.Judged],
  stored: verdicts.Stored,
  *,
  numbers: bool,
  messages: bool,
) -> str:
  """What is to be said of the papers' claims: how many are met here, and which are not."""
  if related:
    by = []
    for name in dict.fromkeys(judge.recipe for _, judge in related if judge.recipe):
      of_it = verdicts.resting_on(name)
      words = [verdicts.in_short(of_it, stored)]
      words += verdicts.not_met_in_words(of_it, stored) * numbers  # some are of the same numbers
      judged = name in verdicts.judged_recipes()
      by.append(
        f'[`{name}`]({name}.md) ({". ".join(words).removesuffix(".")})'
        if judged
        else f'`{name}`, which was not run'
      )
    said = [
      f"**The papers' claims** are judged in {_ALL_CLAIMS}, with margins fixed before their runs "
      f'and paired errors{", on these data by " * bool(by)}{"; ".join(by)}. Of those that the '
      f'messages here touch: {verdicts.in_short(related, stored)}.'
    ]
  elif resting:
    said = [
      f"**{verdicts.in_short(resting, stored).replace('**', '')}** of the papers' claims that "
      f'rest on these runs. All claims, and how they are judged: {_ALL_CLAIMS}.',
      *(
        f'These runs are a variant and do not count there: {variant}.'
        for variant in dict.fromkeys(judge.variant for _, judge in resting if judge.variant)
      ),
    ]
  elif numbers or messages:
    return f"**The papers' claims** are judged in {_ALL_CLAIMS}, none of them here."
  else:
    return f"None of the papers' claims ({_ALL_CLAIMS}) rests on these runs."
  return ' '.join([*said, *verdicts.not_met_in_words(related or resting, stored)])
