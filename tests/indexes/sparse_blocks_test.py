"""Sparse rows and the builder."""

import jax
import numpy as np
import pytest
import scipy.sparse

from nnn_jax.indexes import sparse, sparse_blocks, sparse_summaries


def matrix(seed=0, num_docs=60, vocab=20):
  rng = np.random.default_rng(seed)
  dense = rng.random((num_docs, vocab)) * (rng.random((num_docs, vocab)) < 0.3)
  dense[7] = 0
  return dense.astype(np.float32)


def test_formats_agree(tmp_path):
  dense = matrix()
  csr = sparse.from_csr(scipy.sparse.csr_array(dense))
  at = [np.flatnonzero(row)[::-1] for row in dense]  # Unsorted.
  values = [row[i] for row, i in zip(dense, at, strict=True)]
  lists = sparse.from_lists(at, values, dense.shape[1])
  path = tmp_path / "a.jsonl"
  path.write_text(
    "\n".join(
      f'{{"id": {n}, "vector": '
      f"{ {str(i): float(v) for i, v in zip(*p, strict=True)} } }}".replace(
        "'", '"'
      )
      for n, p in enumerate(zip(at, values, strict=True))
    )
  )
  ids, read = sparse.read_jsonl(path, vocab=dense.shape[1])
  assert ids[:2] == ["0", "1"]
  for rows in (lists, read):
    for a, b in zip(csr, rows, strict=True):
      np.testing.assert_array_equal(a, b)
  assert csr.num_docs == len(dense)


def test_queries_leave_out_what_no_document_has(tmp_path, caplog):
  path = tmp_path / "queries.jsonl"
  path.write_text(
    '{"id": "a", "vector": {"x": 1.0, "new": 2.0}}\n'
    '{"id": "b", "vector": {"new": 2.0, "other": 1.0}}\n'
  )
  tokens = {"x": 0, "y": 1}
  ids, rows = sparse.read_jsonl(path, vocab=2, tokens=tokens, queries=True)
  assert ids == ["a", "b"]
  assert rows.starts.tolist() == [0, 1, 1]
  assert "3 entries that no document has" in caplog.text
  with pytest.raises(ValueError, match=r"line 1 is not .* known coordinates"):
    sparse.read_jsonl(path, vocab=2, tokens=tokens)
  path.write_text('{"id": 0, "vector": {"1": 1.0, "7": 2.0}}')
  _, rows = sparse.read_jsonl(path, vocab=2, queries=True)
  assert rows.indices.tolist() == [1]


@pytest.mark.parametrize(
  ("indices", "values", "message"),
  [
    ([[0], [1]], [[1.0], [-2.0]], "row 1 holds a negative weight"),
    ([[0], [1]], [[1.0], [np.nan]], "row 1 holds NaN or infinity"),
    ([[0], [1]], [[7e4], [1.0]], "row 0 holds a weight above 65504"),
    ([[0], [9]], [[1.0], [1.0]], r"row 1 has a coordinate not in \[0, 4\)"),
    ([[0], [1, 1]], [[1.0], [1.0, 2.0]], "row 1 lists a coordinate twice"),
    ([[0], [1, 2]], [[1.0], [1.0]], "row 1 has 2 coordinates and 1 values"),
    ([[0]], [[1.0], [1.0]], "indices has 1 rows and values 2"),
    ([], [], "corpus is empty"),
  ],
)
def test_bad_rows_are_named(indices, values, message):
  with pytest.raises(ValueError, match=message):
    sparse.from_lists(indices, values, 4)


def entries_of(arrays, coord, block):
  """The (coordinates, codes) of a summary; these must be in their buckets."""
  starts = arrays.bucket_starts[coord * arrays.num_buckets :]
  starts = starts[: arrays.num_buckets + 1]
  part = slice(starts[0], starts[-1])
  coords = arrays.entry_coords[part].astype(int)
  assert (np.diff(coords) >= 0).all()
  bucket = np.searchsorted(starts, np.arange(part.start, part.stop), "right")
  np.testing.assert_array_equal(bucket - 1, coords >> arrays.bucket_bits)
  mine = arrays.entry_blocks[part] == block
  return coords[mine], arrays.entry_codes[part][mine]


@pytest.mark.parametrize("prune", ["paper", "global"])
@pytest.mark.parametrize("quantize", [True, False])
@pytest.mark.parametrize("chunk", [50, 4_000_000])
def test_an_index_keeps_what_it_says(prune, quantize, chunk, monkeypatch):
  monkeypatch.setattr(sparse_summaries, "_CHUNK_ENTRIES", chunk)
  # What is stored, and so what is summed up, is rounded to float16.
  dense, alpha = matrix().astype(np.float16).astype(np.float32), 0.6
  config = sparse_blocks.BuildConfig(
    prune=prune,
    n_postings=6,
    max_fraction=1.5,
    alpha=alpha,
    quantize=quantize,
    centroid_fraction=0.4,
    min_cluster_size=1,
  )
  rows = sparse.from_csr(scipy.sparse.csr_array(dense))
  index = sparse_blocks.build(rows, config=config)
  kept = np.sort(dense[dense > 0])[::-1][6 * dense.shape[1] - 1]
  arrays = jax.tree.map(np.asarray, index)
  for coord in range(dense.shape[1]):
    blocks = range(arrays.list_starts[coord], arrays.list_starts[coord + 1])
    starts = [arrays.block_starts[b] for b in (*blocks, blocks.stop)]
    docs = arrays.postings[starts[0] : starts[-1]]
    order = np.argsort(-dense[:, coord], kind="stable")
    order = order[: (dense[:, coord] > 0).sum()]
    if prune == "paper":
      order = order[:6]
    else:
      order = order[dense[order, coord] >= kept][:9]
    assert sorted(docs) == sorted(order)
    for block in blocks:
      members = arrays.postings[
        arrays.block_starts[block] : arrays.block_starts[block + 1]
      ]
      assert len(members)
      highest = dense[members].max(axis=0)
      by_value = np.sort(highest)[::-1]
      num = np.argmax(np.cumsum(by_value) >= alpha * by_value.sum() - 1e-6) + 1
      at, codes = entries_of(arrays, coord, block - blocks.start)
      assert len(at) == num
      order = np.argsort(-highest[at], kind="stable")
      at, codes = at[order], codes[order].astype(np.float32)
      values = arrays.summary_step[block] * codes
      values += arrays.summary_least[block] * quantize
      atol = 1 / 500 if quantize else 1e-6
      np.testing.assert_allclose(values, by_value[:num], atol=atol)
      np.testing.assert_allclose(highest[at], by_value[:num])


def test_constant_summaries_and_empty_rows():
  rows = sparse.from_lists([[1], [], [1]], [[2.0], [], [2.0]], 3)
  index = sparse_blocks.build(rows)
  assert index.shape == (3, 3)
  assert index.summary_step.tolist() == [0.0]
  assert index.entry_codes.tolist() == [0]
  assert index.summary_least.tolist() == [2.0]


def test_save_and_load(tmp_path):
  rows = sparse.from_csr(scipy.sparse.csr_array(matrix()))
  index = sparse_blocks.build(rows)
  sparse_blocks.save(index, tmp_path / "index.npz")
  loaded = sparse_blocks.load(tmp_path / "index.npz")
  assert jax.tree.structure(index) == jax.tree.structure(loaded)
  jax.tree.map(np.testing.assert_array_equal, index, loaded)
  again = sparse_blocks.build(rows)
  jax.tree.map(np.testing.assert_array_equal, index, again)
  (tmp_path / "bad.npz").write_bytes(b"no")
  with pytest.raises(ValueError, match="is not a whole file"):
    sparse_blocks.load(tmp_path / "bad.npz")


def test_what_float16_rounds_to_zero_is_no_posting():
  rows = sparse.from_lists([[0, 1], [1]], [[1e-9, 2.0], [1.0]], 2)
  index = sparse_blocks.build(rows)
  assert index.list_starts.tolist()[:2] == [0, 0]
  assert 0 not in np.asarray(index.indices)
