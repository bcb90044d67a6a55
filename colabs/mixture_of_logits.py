# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Mixture of logits
#
# A dot product of $d$ numbers has rank $d$. A mixture of logits
#
# $$\phi(q, x) = \sum_p \pi_p(q, x) \, s_p(q, x), \qquad
# s_p = \langle f_n(q), g_m(x) \rangle / \tau$$
#
# has gates $\pi$ that depend on the pair, so it can be of any rank (arXiv
# 2407.15462). Here: training one, searching it, and what a search can promise.

# %%
# In a fresh Colab: clone the repository, then install it.
# %pip install -q "./nnn_jax[train]"

# %%
import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax
from flax import nnx

from nnn_jax import losses
from nnn_jax.decoders import mol as decoder
from nnn_jax.indexes import mixture as mixture_index
from nnn_jax.models import mol

# %% [markdown]
# ## Any matrix, from logits of rank one
#
# Take $s_1 = c$ and $s_2 = -c$ for every pair, $c \ge \max |A|$, and
# $\pi_1 = 1/2 + A / (2c)$: the mixture is $A$. (The gates of the model are not
# that free: they are a function of the logits and of one product a component.)

# %%
target = jax.random.normal(jax.random.key(0), (30, 20))
c = jnp.abs(target).max()
logits = jnp.stack([jnp.full_like(target, c), jnp.full_like(target, -c)])
gates = jnp.stack([0.5 + target / (2 * c), 0.5 - target / (2 * c)])
mixed = (gates * logits).sum(axis=0)
print(
  f"rank {jnp.linalg.matrix_rank(target)} from logits of rank "
  f"{jnp.linalg.matrix_rank(logits[0])}: error {jnp.abs(mixed - target).max()}"
)

# %% [markdown]
# ## Training
#
# A query is a rotated and noisy view of an item. `sampled_softmax` knows items
# by id, and leaves out a negative that is the positive itself.
# `load_balancing` keeps all components in use.

# %%
NUM_ITEMS, DIM = 2_000, 32
keys = jax.random.split(jax.random.key(0), 4)
items = jax.random.normal(keys[0], (NUM_ITEMS, DIM))
rotation, _ = jnp.linalg.qr(jax.random.normal(keys[1], (DIM, DIM)))


def view(rows, key):
  noise = jax.random.normal(key, (len(rows), DIM))
  return (items[rows] + 0.7 * noise) @ rotation


def train(balance, steps=400):
  config = mol.MolConfig(
    query_dim=DIM,
    item_dim=DIM,
    num_query_components=4,
    num_item_components=4,
    component_dim=16,
    query_hidden=64,
  )
  graphdef, params = nnx.split(mol.Mol(config, rngs=nnx.Rngs(0)))
  optimizer = optax.adamw(3e-3)

  def loss_fn(params, key):
    model = nnx.merge(graphdef, params)
    keys = jax.random.split(key, 4)
    positive = jax.random.randint(keys[0], (64,), 0, NUM_ITEMS)
    negative = jax.random.randint(keys[1], (128,), 0, NUM_ITEMS)
    side = model.queries(view(positive, keys[2])[:, None])
    rngs = nnx.Rngs(dropout=keys[3])  # Without it nothing is dropped.
    own, gates = model(side, model.items(items[positive][:, None]), rngs=rngs)
    others, _ = model(side, model.items(items[negative]), rngs=rngs)
    loss = losses.sampled_softmax(
      own[:, 0], others, positive_ids=positive, negative_ids=negative
    )
    return loss.mean() + balance * losses.load_balancing(gates)

  @jax.jit
  def run(params):
    def step(state, key):
      grads = jax.grad(loss_fn)(state[0], key)
      updates, moments = optimizer.update(grads, state[1], state[0])
      return (optax.apply_updates(state[0], updates), moments), None

    state = params, optimizer.init(params)
    state, _ = jax.lax.scan(step, state, jax.random.split(keys[2], steps))
    return state[0]

  return nnx.merge(graphdef, run(params))


targets = jax.random.randint(keys[3], (500,), 0, NUM_ITEMS)
held_out = view(targets, jax.random.key(1))


def search(model, how, k=10):
  index = mixture_index.build(model.items(items))
  decode = functools.partial(
    decoder.decode, k=k, config=decoder.MolConfig(search=how)
  )
  batch = jax.jit(jax.vmap(decode, in_axes=(None, 0, None)))
  return batch(model.params(), model.queries(held_out), index)


fig, ax = plt.subplots(figsize=(5, 3))
for balance in (0.0, 0.01):
  model = train(balance)
  exact = search(model, decoder.BruteForce())
  hit = (exact.indices == targets[:, None]).any(axis=1).mean()
  _, gates = model(model.queries(held_out), model.items(items[targets]))
  usage = jnp.sort(gates.mean(axis=0), descending=True)
  ax.plot(usage, "o-", label=f"weight of load_balancing {balance}")
  print(f"weight {balance}: hit rate at 10 {hit:.3f}")
ax.set(xlabel="component, by use", ylabel="mean gate", ylim=(0, None))
ax.legend()
plt.show()

# %% [markdown]
# ## Searching
#
# `Average` takes one product with one vector an item, then ranks `num`
# candidates by $\phi$. `TwoPass` ranks candidates by the largest logit, which
# no gate can exceed; so it knows when nothing else can be in the answer.

# %%
truth = exact.indices
nums = [20, 50, 100, 200, 500, 1_000]
fig, ax = plt.subplots(figsize=(5, 4))
for kind in (decoder.Average, decoder.TwoPass):
  recalls, certain = [], []
  for num in nums:
    result = search(model, kind(num=num))
    found = (truth[:, :, None] == result.indices[:, None, :]).any(axis=2)
    recalls.append(float(found.mean()))
    certain.append(float(result.aux.exact.mean()))
    right = (truth == result.indices).all(axis=1)
    assert bool(right[result.aux.exact].all())  # What is certain is right.
  ax.plot(nums, recalls, "o-", label=f"{kind.__name__}: recall")
ax.plot(nums, certain, "s--", label="TwoPass: certified")
ax.set(xscale="log", xlabel="candidates", ylabel="share")
ax.legend()
plt.show()

# %% [markdown]
# Where the certificate fails, `TwoPass(num=..., fallback=True)` searches by
# brute force. Items already seen are left out with
# `MolQuery(*queries, exclude=rows)`.
