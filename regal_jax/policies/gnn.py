"""`GraphNetwork`: embeddings of ops by messages along edges in both directions."""

import jax
import jax.numpy as jnp
from flax import nnx

from regal_jax.policies.config import PolicyConfig
from regal_jax.policies.features import GraphFeatures
from regal_jax.policies.layers import Mlp

__all__ = ["GraphNetwork"]


class GraphNetwork(nnx.Module):
    """``MLP_n``, ``MLP_e`` and ``T`` rounds of messages.

    With the notation of the paper, a round computes for every edge ``m = MLP_msg([h_s, h_t, h_e])`` and
    ``m' = MLP'_msg([h_s, h_t, h_e])``, and for every op
    ``h <- LayerNorm(h + MLP_node([h, sum of m over edges in + sum of m' over edges out]))``.

    Our additions: the residual sum, and the LayerNorm, without which embeddings would grow with degrees and
    rounds. `Ablation.residual` and `Ablation.norm` leave them out. All MLPs have one hidden layer. The output
    layer of a message MLP is applied to the sums instead of the messages, which is equivalent because it has
    no bias.

    References:
      REGAL, workshop text, appendix A.3, equation 1.
    """

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        """A network of the given shape.

        Args:
          config: Config with width, rounds and features.
          rngs: Random numbers for the initial weights, consumed.
        """
        width, features = config.width, config.feature_config
        self.node = Mlp(len(config.input_names), width, width, rngs=rngs)
        self.times = config.rounds
        if config.rounds:
            self.edge = Mlp(len(features.edge_names), width, width, rngs=rngs)
            distinct = 1 if config.ablation.share_rounds else config.rounds
            self.rounds = nnx.List([_Round(config, rngs=rngs) for _ in range(distinct)])

    def __call__(self, inputs: jax.Array, features: GraphFeatures) -> jax.Array:
        """``[B, N, W]`` float32 embeddings; those of padding are undefined.

        Args:
          inputs: ``[B, N, I]`` float32, the inputs of `PolicyConfig.input_names`.
          features: Edges and masks.
        """
        batch, n, _ = inputs.shape
        embedding = self.node(inputs)
        if not self.times:
            return embedding
        # The graphs of a batch are treated as one graph, so that gathers copy whole rows.
        first = jnp.arange(batch, dtype=jnp.int32)[:, None] * n
        senders, receivers = ((first + ends).ravel() for ends in (features.senders, features.receivers))
        edges = self.edge(jnp.asarray(features.edges).reshape(-1, features.edges.shape[-1]))
        mask = jnp.asarray(features.edge_mask).ravel()
        embedding = embedding.reshape(batch * n, -1)
        for t in range(self.times):
            embedding = self.rounds[t % len(self.rounds)](embedding, edges, senders, receivers, mask)
        return embedding.reshape(batch, n, -1)


class _Round(nnx.Module):
    """Weights of one round."""

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        width = config.width
        self.residual = config.ablation.residual
        # The hidden layer of both message MLPs is split by its inputs: the op as sender, the op as receiver
        # (both computed once per op, not once per edge), and the edge. Forward comes before backward.
        self.from_op = nnx.Linear(width, 4 * width, use_bias=False, rngs=rngs)
        self.from_edge = nnx.Linear(width, 2 * width, rngs=rngs)
        self.message = nnx.Linear(2 * width, width, use_bias=False, rngs=rngs)
        self.update = Mlp(2 * width, width, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs) if config.ablation.norm else None

    def __call__(
        self,
        embedding: jax.Array,
        edges: jax.Array,
        senders: jax.Array,
        receivers: jax.Array,
        mask: jax.Array,
    ) -> jax.Array:
        n, width = embedding.shape
        roles = self.from_op(embedding)
        hidden = roles[:, : 2 * width][senders] + roles[:, 2 * width :][receivers] + self.from_edge(edges)
        hidden = jnp.where(mask[:, None], nnx.relu(hidden), 0)
        # One scatter with forward sums first takes half the time of two scatters on CPUs.
        ends = jnp.concatenate([receivers, senders + n])
        sums = jax.ops.segment_sum(jnp.concatenate([hidden[:, :width], hidden[:, width:]]), ends, 2 * n)
        messages = self.message(jnp.concatenate([sums[:n], sums[n:]], axis=1))
        new = self.update(jnp.concatenate([embedding, messages], axis=1))
        new = embedding + new if self.residual else new
        return new if self.norm is None else self.norm(new)
