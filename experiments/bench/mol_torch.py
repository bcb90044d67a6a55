"""The mixture of logits in PyTorch eager, for `mol_bench` to measure."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from experiments.bench import mol_worlds
from nnn_jax.core import mixture

# Items scored at a time: the fastest of 128 to 8,192 at 8x8x32 on one core.
_BLOCK_SIZE = 256


def _tensor(x) -> torch.Tensor:
  return torch.from_numpy(np.array(x, np.float32))


class Peer:
  """Holds a world's items in float32, as PyTorch's CPU products want them."""

  def __init__(self, world: mol_worlds.World, *, threads: int):
    torch.set_num_threads(threads)
    self._params = [_tensor(p) for p in world.params]
    self._components = _tensor(world.items.components)
    self._gate = _tensor(world.items.gate)
    self._mean = _tensor(world.items.mean)

  def _scores(self, f, a, g, b) -> torch.Tensor:
    """`[batch, num]` of queries and items `[num, ...]` or `[batch, num, ...]`.

    Products are of matrices, as large as the inputs allow.
    """
    hidden_kernel, hidden_bias, output_kernel, output_bias, tau = self._params
    batch, num_query, dim = f.shape
    num, num_item = g.shape[-3:-1]
    if g.ndim == 3:  # Shared items: one product for the batch.
      products = f.reshape(-1, dim) @ g.reshape(-1, dim).T
      products = products.reshape(batch, num_query, num, num_item)
    else:
      products = f @ g.reshape(batch, -1, dim).transpose(1, 2)
      products = products.reshape(batch, num_query, num, num_item)
    s = products.transpose(1, 2).reshape(batch, num, -1) / tau
    hidden = functional.silu(s @ hidden_kernel + hidden_bias)
    c = hidden @ output_kernel + output_bias
    pi = torch.softmax(functional.silu(a[:, None] * b + c), dim=-1)
    return (pi * s).sum(dim=-1)

  @torch.inference_mode()
  def brute_force(self, queries: mixture.QuerySide, k: int) -> np.ndarray:
    """The exact top k, `[batch, k]`."""
    f, a = map(_tensor, queries)
    scores = torch.cat(
      [
        self._scores(f, a, g, b)
        for g, b in zip(
          self._components.split(_BLOCK_SIZE),
          self._gate.split(_BLOCK_SIZE),
          strict=True,
        )
      ],
      dim=1,
    )
    return scores.topk(k).indices.numpy()

  @torch.inference_mode()
  def average(self, queries: mixture.QuerySide, k: int, num: int) -> np.ndarray:
    """The search by the mean logit."""
    f, a = map(_tensor, queries)
    rows = (f.sum(dim=1) @ self._mean.T).topk(num).indices
    scores = self._scores(f, a, self._components[rows], self._gate[rows])
    best = scores.topk(k).indices
    return rows.gather(1, best).numpy()
