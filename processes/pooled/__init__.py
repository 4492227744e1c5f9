"""All data in one place: a reference, not federated."""

from processes.declaration import Method

METHOD = Method(
  name='pooled',
  title='Pooled',
  summary='not federated: all data in one place, as a reference',
  citation='none',
  privacy_units=('none', 'example'),
  federated=False,
)
