"""Models as pure functions on explicit parameters."""

from tff_models.registry import DEFAULT_MODEL, MODELS

__all__ = ['DEFAULT_MODEL', 'MODELS', 'build_model']


def __getattr__(name):
  # TensorFlow is imported only when a model is built.
  if name == 'build_model':
    from tff_models.build import build_model

    return build_model
  raise AttributeError(name)
