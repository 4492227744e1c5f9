"""What the papers claim and what came of it, as stored, and the tables that say so.

`recipes/claims.json` holds the claims, `recipes/verdicts.json` their verdicts, which `claims`
finds, and `recipes/own_messages.json` what recipes say beside them. `page` is `docs/claims.md`;
pages of results have the same table. Importing this module does not import TensorFlow.
"""

import collections
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.folder import files
from experiments.recipes import measures, recipes, rules

MET, NOT_MET, NOT_RUN, NO_DATA = 'met', 'not met', 'not run', 'data not to be had'
VERDICTS = (MET, NOT_MET, NOT_RUN, NO_DATA)
PAPERS = {'feo2': 'FeO2', 'ppsgd': 'PPSGD', 'silo': 'Cross-silo'}
_FILE, STORE = recipes.FOLDER / 'claims.json', recipes.FOLDER / 'verdicts.json'
_OWN_MESSAGES = recipes.FOLDER / 'own_messages.json'
PAGE = recipes.FOLDER.parent / 'docs' / 'claims.md'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judge:
  """Who judges a claim on one data set: one of recipe, theory, counts, or nobody.

  Attributes:
    data: which.
    recipe: whose runs.
    family: of the recipe: names of terms, and the tuning seeds.
    values: what '$name' stands for in the measure.
    with_: further recipes whose parts are named 'NAME.part'.
    theory: name of a function of the paper's module in `analysis.claims`.
    dataset: what the function is given the data of, from the paper's module of checks on data.
    needed: of its pairs: 'all' or 'any'.
    counts: a data set whose sizes are compared.
    missing: why the data are not to be had.
    may_differ: why a stand-in need not show it, as written down with the claim. It is judged and
      counts all the same.
    variant: in what its runs are not what the paper's text asks for, where that is of interest by
      itself. It is judged and shown, and does not count.
  """

  data: str
  recipe: str = ''
  family: str = ''
  values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  with_: Mapping[str, str] = dataclasses.field(default_factory=dict)
  theory: str = ''
  dataset: str = ''
  needed: str = 'all'
  counts: str = ''
  missing: str = ''
  may_differ: str = ''
  variant: str = ''

  def __post_init__(self):
    given = [bool(x) for x in (self.recipe, self.theory, self.counts, self.missing)]
    if sum(given) != 1:
      raise ValueError(f'judge of {self.data}: one of recipe, theory, counts and missing.')
    if self.dataset and not self.theory:
      raise ValueError(f'judge of {self.data}: a dataset belongs to a theory check.')

  @property
  def recipes(self) -> tuple[str, ...]:
    """All that it needs the runs of."""
    return (self.recipe, *self.with_.values()) if self.recipe else ()

  @property
  def name(self) -> str:
    """What is run for it."""
    if self.recipe:
      return self.recipe
    if self.theory:
      return 'theory_on_data' if self.dataset else 'theory'
    return 'counts' if self.counts else ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
  """One claim.

  Attributes:
    id: its name for good.
    paper: feo2, ppsgd or silo.
    where: in the paper.
    data: the paper's.
    kind: number, order, trend or theory.
    strength: central or supporting.
    what: in words.
    how: how it is judged beyond the general rules.
    left, relation, right, margin: the comparison.
    tolerance: a table's cells.
    measure: how the numbers are read from runs.
    judges: one for each data set that it can be tried on.
  """

  id: str
  paper: str
  where: str
  data: tuple[str, ...]
  kind: str
  strength: str
  what: str
  how: str = ''
  left: Mapping[str, Any]
  relation: str
  right: Mapping[str, Any]
  margin: Any
  tolerance: Mapping[str, Mapping[str, float]] | None = None
  measure: Mapping[str, Any] | None = None
  judges: tuple[Judge, ...]

  def __post_init__(self):
    if all(judge.variant for judge in self.judges):
      raise ValueError(f'claim {self.id}: it needs a judge, or the reason why there is none.')
    if any(judge.recipe for judge in self.judges) and self.measure is None:
      raise ValueError(f'claim {self.id}: a recipe judges it, but there is no measure.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """What came out on one data set.

  Attributes:
    verdict: one of `VERDICTS`.
    text: the numbers with their paired errors, or the reason.
    seeds: that judged; 0 for what is exact.
    date: of the run.
    remark: dated, where something has to be said beside it.
  """

  verdict: str
  text: str
  seeds: int = 0
  date: str = ''
  remark: str = ''

  def __post_init__(self):
    if self.verdict not in VERDICTS:
      raise ValueError(f'{self.verdict!r} is no verdict; there are {", ".join(VERDICTS)}.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnMessage:
  """A message that a recipe checks and that is no claim of a paper.

  Attributes:
    recipe: whose.
    what: in words, as the recipe has them.
    written: the day, ISO.
    when: 'before the run' or 'after the run'.
    margin: written with it, where it was before the run.
    seeds: likewise.
    same_as: an earlier message of the recipe with the same number, so that both count as one.
    claims: the data set of each claim of a paper, by its id, that says the same or more of the
      same data.
  """

  recipe: str
  what: str
  written: str
  when: str
  margin: float | None = None
  seeds: str = ''
  same_as: str = ''
  claims: Mapping[str, str] = dataclasses.field(default_factory=dict)


Judged = tuple[Claim, Judge]
Stored = Mapping[str, Mapping[str, Verdict]]


def read() -> list[Claim]:
  """All claims, in the order of the papers."""
  raw = json.loads(_FILE.read_text())
  return [
    Claim(
      data=tuple(claim.pop('data')),
      judges=tuple(Judge(with_=j.pop('with', {}), **j) for j in claim.pop('judges')),
      **claim,
    )
    for claim in raw['claims']
  ]


def read_families() -> dict[str, Any]:
  """The families of recipes: tuning seeds and named terms."""
  return json.loads(_FILE.read_text())['families']


def read_verdicts() -> dict[str, dict[str, Verdict]]:
  """Stored verdicts by claim and data set; a `ValueError` if their file is damaged."""
  try:
    raw = json.loads(STORE.read_text()) if STORE.exists() else {}
    return {id_: {d: Verdict(**v) for d, v in by_data.items()} for id_, by_data in raw.items()}
  except (ValueError, TypeError, AttributeError) as error:
    raise ValueError(f'{STORE} is damaged: {error}') from error


def write_verdicts(verdicts: Mapping[str, Mapping[str, Verdict]]) -> None:
  """Stores verdicts, sorted, in the place of all that are stored; `store` adds some."""
  plain = {
    id_: {
      data: {n: v for n, v in dataclasses.asdict(verdict).items() if v not in ('', 0)}
      for data, verdict in sorted(by_data.items())
    }
    for id_, by_data in sorted(verdicts.items())
  }
  text = json.dumps(plain, indent=1, ensure_ascii=False) + '\n'
  files.write_atomically(STORE, text.encode())


def store(found: Mapping[str, Mapping[str, Verdict]]) -> dict[str, dict[str, Verdict]]:
  """Adds verdicts to the stored ones, whoever else does so now; returns them all.

  Runs that judge other claims may have stored theirs since this one began, so that what is stored
  is read again here. Remarks beside earlier verdicts stay.
  """
  with files.locked(STORE):
    stored = read_verdicts()
    for id_, by_data in found.items():
      before = stored.setdefault(id_, {})
      for data, verdict in by_data.items():
        remark = verdict.remark or (before[data].remark if data in before else '')
        before[data] = dataclasses.replace(verdict, remark=remark)
    write_verdicts(stored)
  return stored


def read_own_messages() -> list[OwnMessage]:
  """Messages of recipes that are no claims of a paper."""
  raw = json.loads(_OWN_MESSAGES.read_text())
  return [OwnMessage(**message) for message in raw]


def read_messages_of(recipe: str) -> dict[str, OwnMessage]:
  """A recipe's own messages, by what they say."""
  return {message.what: message for message in read_own_messages() if message.recipe == recipe}


def verdict_of(judge: Judge, stored: Mapping[str, Verdict]) -> Verdict:
  """The verdict on one data set, also where nothing was run."""
  if judge.missing:
    return Verdict(verdict=NO_DATA, text=judge.missing)
  return stored.get(judge.data) or Verdict(verdict=NOT_RUN, text=f'`{judge.name}`')


def resting_on(recipe: str) -> list[Judged]:
  """The claims that a recipe's runs judge, alone or with those of others."""
  return [(claim, judge) for claim in read() for judge in claim.judges if recipe in judge.recipes]


def judged_recipes() -> list[str]:
  """The recipes on whose runs a verdict is stored, by name."""
  stored = read_verdicts()
  return sorted(
    {
      name
      for claim in read()
      for judge in claim.judges
      if judge.data in stored.get(claim.id, {})
      for name in judge.recipes
    }
  )


def judges_of(claims: Mapping[str, str]) -> list[Judged]:
  """Claims by id with the judge on the data set that is named for each, in the papers' order."""
  return [
    (claim, judge)
    for claim in read()
    for judge in claim.judges
    if claims.get(claim.id) == judge.data
  ]


def overall(claim: Claim, stored: Mapping[str, Verdict]) -> str:
  """The verdict on a claim: met when it is met on all data sets that were run."""
  counting = [judge for judge in claim.judges if not judge.variant]
  found = [verdict_of(judge, stored).verdict for judge in counting]
  for verdict in (NOT_MET, MET, NOT_RUN):
    if verdict in found:
      return verdict
  return NO_DATA


# ------------------------------------------------------------ shown


def page(claims: Sequence[Claim], stored: Stored) -> str:
  """The whole table in Markdown."""
  every = [(claim, overall(claim, stored.get(claim.id, {}))) for claim in claims]
  lines = [
    '# Claims',
    '',
    'Every claim of the three papers, with its verdict. The claims, with their margins and '
    'tolerances, were written from the papers alone, before any run that judges them; they are not '
    'changed afterwards. `make claims` prints this page, `make claims RUN=NAME` runs what a claim, '
    'a recipe or `theory` needs, and judges it, `make claims ARGS=--judge` judges the runs behind '
    'stored verdicts again, where `recipes/evidence/` has their numbers.',
    '',
    'At least three seeds, which move split, sampling and noise alike on both sides. An error (±) '
    "is two paired standard errors, below six seeds Student's t at 95 %. 'More' and 'less' have to "
    'exceed the margin and the error. Settings are chosen on seeds that judge nothing, from one '
    'grid for all methods. A claim is met when it is met on all data sets that were run; a verdict '
    "on a stand-in never stands for the paper's data. Beside a data set stands in what its runs "
    'are not those of the claim, and where the list asks a stand-in for the sign of a difference '
    'only, without the margin. *May differ* says of which stand-ins it did not ask for the claim, '
    'and why; they are judged and count all the same. A *variant* is run otherwise than the '
    "paper's text has it, and does not count. Accuracies are in points.",
    '',
    '| paper | ' + ' | '.join(VERDICTS) + ' | all |',
    '| --- |' + ' --- |' * (len(VERDICTS) + 1),
  ]
  for paper, title in (*PAPERS.items(), ('', '**all**')):
    counts = collections.Counter(v for claim, v in every if paper in ('', claim.paper))
    row = [str(counts[verdict]) for verdict in VERDICTS]
    lines.append(f'| {title} | {" | ".join(row)} | {sum(counts.values())} |')
  not_met = [f'`{claim.id}`' for claim, verdict in every if verdict == NOT_MET]
  lines += ['', f'**Not met**: {", ".join(not_met) or "none"}.']
  for paper, title in PAPERS.items():
    judged = [(claim, judge) for claim in claims if claim.paper == paper for judge in claim.judges]
    lines += ['', f'## {title}', '', *table(judged, stored)]
  return '\n'.join(lines) + '\n'


def table(judged: Sequence[Judged], stored: Stored) -> list[str]:
  """Claims on data sets with their verdicts and numbers: lines of a table in Markdown.

  Args:
    judged: a row each; a claim is named in the first of its rows.
    stored: verdicts by claim and data set.
  """
  lines, before = ['| claim | what | data | verdict | numbers |', '| --- ' * 5 + '|'], ''
  for claim, judge in judged:
    found = verdict_of(judge, stored.get(claim.id, {}))
    seeds = f' ({found.seeds} seeds)' if found.seeds else ''
    said = f'{found.text}{seeds}' + (f' *{found.remark}*' if found.remark else '')
    new = claim.id != before
    first = (f'`{claim.id}`', f'{claim.what} ({claim.where})') if new else ('', '')
    beside = _beside_the_data(claim, judge)
    data = judge.data + (f' ({"; ".join(beside)})' if beside else '')
    cells = (*first, data, _plainly(found.verdict), said)
    lines.append(
      '| ' + ' | '.join(re.sub(r'\s+', ' ', cell.replace('|', '/')) for cell in cells) + ' |'
    )
    before = claim.id
  return lines


def _beside_the_data(claim: Claim, judge: Judge) -> list[str]:
  """What is not as the claim has it on a stand-in: its runs, its margin, whether it has to hold."""
  found = [recipes.read(name).differs for name in judge.recipes]
  if judge.variant:
    found.insert(0, f'a variant, which does not count: {judge.variant}')
  if judge.values.get('sign_only'):
    margin = measures.listed_margin(claim.margin, judge.values)
    found.append(f"in sign only, the margin of {margin:g} is for the paper's data")
  if judge.may_differ:
    found.append(f'may differ: {judge.may_differ}')
  return [words for words in found if words]


def in_short(judged: Sequence[Judged], stored: Stored) -> str:
  """How many are met and how many are not, and how many more have no verdict."""
  counts = collections.Counter(
    verdict_of(judge, stored.get(claim.id, {})).verdict for claim, judge in judged
  )
  others = [f'{counts[v]} {v}' for v in (NOT_RUN, NO_DATA) if counts[v]]
  return ', '.join([f'{counts[MET]} {MET}', f'{counts[NOT_MET]} {_plainly(NOT_MET)}', *others])


def in_words(claim: Claim, judge: Judge, stored: Stored) -> str:
  """A claim's name and its verdict on a data set, with the reason why a run gave none."""
  found = verdict_of(judge, stored.get(claim.id, {}))
  why = f', {rules.NO_PREMISE}' if found.text.startswith(rules.NO_PREMISE) else ''
  return f'`{claim.id}`: {_plainly(found.verdict)}{why}'


def not_met_in_words(judged: Sequence[Judged], stored: Stored) -> list[str]:
  """Sentences that name the claims that are not met, and those whose premise does not hold."""
  not_met, no_premise = [], []
  for claim, judge in judged:
    found = verdict_of(judge, stored.get(claim.id, {}))
    if found.verdict == NOT_MET:
      not_met.append(f'`{claim.id}`')
    elif found.text.startswith(rules.NO_PREMISE):
      no_premise.append(f'`{claim.id}`')
  said = [f'**Not met**: {", ".join(not_met)}.'] if not_met else []
  if no_premise:
    said.append(f'**Without a verdict**, since {rules.NO_PREMISE}: {", ".join(no_premise)}.')
  return said


def _plainly(verdict: str) -> str:
  return f'**{verdict}**' if verdict == NOT_MET else verdict
