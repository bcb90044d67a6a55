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
# ## Data that a dot product cannot rank
#
# A query has four interests; an item belongs to it if it meets any one of them
# well: the relevance is a maximum of four products.

# %%
NUM_ITEMS, PARTS, DIM = 2_000, 4, 8
keys = jax.random.split(jax.random.key(0), 3)
items = jax.random.normal(keys[0], (NUM_ITEMS, PARTS * DIM))
queries = jax.random.normal(keys[1], (4_500, PARTS * DIM))


@jax.jit
def best_item(query):
  products = query.reshape(PARTS, DIM) * items.reshape(-1, PARTS, DIM)
  return jnp.argmax(products.sum(axis=-1).max(axis=-1))


positive = jax.lax.map(best_item, queries, batch_size=100)
held_out, held_out_positive = queries[4_000:], positive[4_000:]

# %% [markdown]
# ## Training
#
# Every item is a negative of every query but its own: `sampled_softmax` knows
# items by id and leaves accidental hits out. `load_balancing` keeps all
# components in use.


# %%
def train(num_components, dim, steps=400):
  config = mol.MolConfig(
    query_dim=PARTS * DIM,
    item_dim=PARTS * DIM,
    num_query_components=num_components,
    num_item_components=num_components,
    component_dim=dim,
    query_hidden=64,
    gate_dropout=0.0,
  )
  graphdef, params = nnx.split(mol.Mol(config, rngs=nnx.Rngs(0)))
  optimizer = optax.adamw(3e-3)

  def loss_fn(params, rows, negatives):
    model = nnx.merge(graphdef, params)
    side = model.queries(queries[rows][:, None])
    own, _ = model(side, model.items(items[positive[rows]][:, None]))
    others, gates = model(side, model.items(items[negatives]))
    loss = losses.sampled_softmax(
      own[:, 0],
      others,
      positive_ids=positive[rows],
      negative_ids=negatives,
    )
    return loss.mean() + 1e-3 * losses.load_balancing(gates)

  @jax.jit
  def step(state, key):
    params, optimizer_state = state
    rows = jax.random.randint(key, (64,), 0, 4_000)
    negatives = jax.random.randint(jax.random.fold_in(key, 1), (128,), 0, 2_000)
    grads = jax.grad(loss_fn)(params, rows, negatives)
    updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
    return (optax.apply_updates(params, updates), optimizer_state), None

  state = params, optimizer.init(params)
  state, _ = jax.lax.scan(step, state, jax.random.split(keys[2], steps))
  return nnx.merge(graphdef, state[0])


def search(model, how, k=10):
  index = mixture_index.build(model.items(items))
  decode = functools.partial(
    decoder.decode, k=k, config=decoder.MolConfig(search=how)
  )
  batch = jax.jit(jax.vmap(decode, in_axes=(None, 0, None)))
  return batch(model.params(), model.queries(held_out), index)


models = {"1 component of 64": train(1, 64), "4 x 4 of 16": train(4, 16)}
exact = {}
for name, model in models.items():
  exact[name] = search(model, decoder.BruteForce())
  hit = (exact[name].indices == held_out_positive[:, None]).any(axis=1)
  print(f"{name}: hit rate at 10 {hit.mean():.3f}")

# %% [markdown]
# With one component there is one gate, equal to 1, and $\phi$ is a dot product.
#
# ## Searching
#
# `Average` takes one product with one vector an item, then ranks `num`
# candidates by $\phi$. `TwoPass` ranks candidates by the largest logit, which
# no gate can exceed; so it knows when nothing else can be in the answer.

# %%
model, truth = models["4 x 4 of 16"], exact["4 x 4 of 16"].indices
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
