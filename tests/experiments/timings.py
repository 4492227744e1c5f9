"""What a run's summary says of how it was run, which may differ between equal runs."""

TIMINGS = (
  'seconds_per_round', 'compile_seconds', 'compilations', 'compiled_programs', 'peak_memory_bytes',
)  # fmt: skip
