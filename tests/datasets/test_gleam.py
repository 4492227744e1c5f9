import numpy as np

import datasets


def test_wearers(tmp_path, write_mat):
  generator = np.random.default_rng(0)
  xs = [generator.normal(size=(n, 180)) for n in (12, 16)]
  ys = [np.where(generator.random(n) < 0.5, -1, 1) for n in (12, 16)]
  write_mat('gleam.mat', xs, ys)
  dataset = datasets.load_dataset('gleam', seed=3, data_dir=tmp_path, preprocessing='none')
  assert dataset.task.example_shape == (180,)
  np.testing.assert_array_equal(dataset.train.num_examples, [9, 12])
  for k, x in enumerate(xs):
    together = np.concatenate([s.x[k, : s.num_examples[k]] for s in (dataset.train, dataset.test)])
    np.testing.assert_array_equal(np.sort(together[:, 0]), np.sort(x[:, 0].astype(np.float32)))
