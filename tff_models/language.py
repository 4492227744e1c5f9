"""Next-word prediction: an LSTM and a small transformer.

Both map tokens x [B, T] to logits [B, T, V]: at place t of what follows the tokens up to
t. Token 0 is padding, and stands behind a sentence's last token: what is computed there
reaches no other place, and the loss leaves it out.
"""

import math

import numpy as np
import tensorflow as tf

from runtime import random_streams
from tff_models import layers
from tff_models import model as model_lib


def build_lstm(
  *,
  name,
  task_kind,
  example_shape,
  num_outputs,
  decode,
  embedding_size,
  lstm_units,
  dropout=0.0,
):
  """Embedding, one LSTM layer, a projection back to the embedding's width, dense output.

  The network of Reddi et al. 2021 for Stack Overflow. The time steps are unrolled:
  a loop's gradient would need tensor lists, which do not vectorise inside a compiled loop.

  Args:
    name: the model's name.
    task_kind: 'next_word'.
    example_shape: (T,).
    num_outputs: V, tokens of the vocabulary, padding included.
    decode: stored tokens -> int32.
    embedding_size: length of a token's vector.
    lstm_units: length of the state.
    dropout: share dropped of the tokens' vectors and of what goes into the output.
  """
  (steps,) = example_shape

  def init(key):
    keys = [random_streams.fold_in(key, i) for i in range(5)]
    zeros = tf.zeros([lstm_units])
    # The forget gate starts open (Jozefowicz et al. 2015); order of gates: i, f, g, o.
    return model_lib.Params(
      embedding=layers.embedding_init(keys[0], num_outputs, embedding_size),
      input_weights=layers.dense_init(keys[1], embedding_size, 4 * lstm_units),
      recurrent_weights=layers.dense_init(keys[2], lstm_units, 4 * lstm_units),
      input_bias=tf.concat([zeros, tf.ones([lstm_units]), zeros, zeros], axis=0),
      projection_weights=layers.dense_init(keys[3], lstm_units, embedding_size),
      projection_bias=tf.zeros([embedding_size]),
      output_weights=layers.dense_init(keys[4], embedding_size, num_outputs),
      output_bias=tf.zeros([num_outputs]),
    )

  def predict(params, x, draws=None):
    drop = layers.Dropout(draws)
    words = drop(tf.gather(params['embedding'], decode(x)), dropout)
    # All steps' inputs in one product; only the recurrence is one after the other.
    inputs = tf.unstack(layers.dense(params, 'input', words), steps, axis=1)
    hidden = cell = tf.zeros_like(inputs[0][:, :lstm_units])
    states = []
    for step in inputs:
      gates = step + tf.matmul(hidden, params['recurrent_weights'])
      let_in, keep, new, let_out = tf.split(gates, 4, axis=1)
      cell = tf.sigmoid(keep) * cell + tf.sigmoid(let_in) * tf.tanh(new)
      hidden = tf.sigmoid(let_out) * tf.tanh(cell)
      states.append(hidden)
    projected = layers.dense(params, 'projection', tf.stack(states, axis=1))
    return layers.dense(params, 'output', drop(projected, dropout))

  return model_lib.OBJECTIVES[task_kind]().model(
    name=name,
    init=init,
    predict=predict,
    head=('output_weights', 'output_bias'),
    draws=2 * steps * embedding_size if dropout else 0,
  )


def build_transformer(
  *,
  name,
  task_kind,
  example_shape,
  num_outputs,
  decode,
  depth,
  width,
  heads,
  feed_forward_units,
  dropout=0.0,
):
  """A decoder-only transformer (Vaswani et al. 2017) with learned positions.

  Normalisation stands before attention and feed-forward (Xiong et al. 2020), so that it trains
  without warm-up. The sizes of pfl-research's Stack Overflow benchmark are the defaults; its
  network normalises after each half, has sines for positions, and the tokens' vectors as output
  matrix.

  Args:
    name: the model's name.
    task_kind: 'next_word'.
    example_shape: (T,).
    num_outputs: V, tokens of the vocabulary, padding included.
    decode: stored tokens -> int32.
    depth: number of layers.
    width: length of a token's vector.
    heads: heads of the attention; they divide `width`.
    feed_forward_units: hidden units of a layer's feed-forward part.
    dropout: share dropped of the tokens' vectors, and of what attention and feed-forward add.
  """
  if width % heads:
    raise ValueError(f'heads={heads} must divide width={width}.')
  (steps,) = example_shape
  places = [f'layer{i}' for i in range(depth)]
  dense_sizes = {}
  for place in places:
    dense_sizes[f'{place}_qkv'] = (width, 3 * width)
    dense_sizes[f'{place}_mix'] = (width, width)
    dense_sizes[f'{place}_expand'] = (width, feed_forward_units)
    dense_sizes[f'{place}_contract'] = (feed_forward_units, width)
  dense_sizes['output'] = (width, num_outputs)
  norms = [f'{place}_{part}' for place in places for part in ('attention', 'feed_forward')]
  # Added to the scores: a place attends to itself and to those before it.
  hidden_future = np.triu(np.full([steps, steps], -1e9, np.float32), k=1)

  def init(key):
    params = model_lib.Params(
      embedding=layers.embedding_init(random_streams.fold_in(key, 0), num_outputs, width),
      positions=layers.embedding_init(random_streams.fold_in(key, 1), steps, width),
    )
    for norm in (*norms, 'final'):
      params[f'{norm}_scale'] = tf.ones([width])
      params[f'{norm}_offset'] = tf.zeros([width])
    for i, (place, (inputs, outputs)) in enumerate(dense_sizes.items()):
      params[f'{place}_weights'] = layers.dense_init(
        random_streams.fold_in(key, 2 + i), inputs, outputs
      )
      params[f'{place}_bias'] = tf.zeros([outputs])
    return params

  def predict(params, x, draws=None):
    drop = layers.Dropout(draws)

    def norm(place, x):
      return layers.layer_norm(x, params[f'{place}_scale'], params[f'{place}_offset'])

    def attention(place, x):
      # [B, T, 3 width] -> three of [B, heads, T, width / heads].
      qkv = tf.reshape(
        layers.dense(params, f'{place}_qkv', x), [-1, steps, 3, heads, width // heads]
      )
      query, key, value = tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]), 3)
      scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(width // heads)
      mixed = tf.matmul(tf.nn.softmax(scores + hidden_future), value)
      together = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, steps, width])
      return layers.dense(params, f'{place}_mix', together)

    def feed_forward(place, x):
      return layers.dense(
        params, f'{place}_contract', tf.nn.relu(layers.dense(params, f'{place}_expand', x))
      )

    hidden = drop(tf.gather(params['embedding'], decode(x)) + params['positions'], dropout)
    for place in places:
      hidden += drop(attention(place, norm(f'{place}_attention', hidden)), dropout)
      hidden += drop(feed_forward(place, norm(f'{place}_feed_forward', hidden)), dropout)
    return layers.dense(params, 'output', norm('final', hidden))

  return model_lib.OBJECTIVES[task_kind]().model(
    name=name,
    init=init,
    predict=predict,
    head=('output_weights', 'output_bias'),
    draws=(1 + 2 * depth) * steps * width if dropout else 0,
  )
