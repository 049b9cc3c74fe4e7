"""`GraphNetwork`: embeddings of ops by messages along edges, both ways."""

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
    rounds. All MLPs have one hidden layer. The output layer of a message MLP is applied to the sums and not
    to the messages, which is the same thing but for its bias, which it goes without.

    References:
      REGAL, workshop text, appendix A.3, equation 1.
    """

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        """A network of the given shape.

        Args:
          config: Its width, rounds and features.
          rngs: For the first weights; consumed.
        """
        width, features = config.width, config.feature_config
        self.node = Mlp(len(config.input_names), width, width, rngs=rngs)
        self.times = config.rounds
        if config.rounds:
            self.edge = Mlp(len(features.edge_names), width, width, rngs=rngs)
            distinct = 1 if config.ablation.share_rounds else config.rounds
            self.rounds = nnx.List([_Round(width, rngs=rngs) for _ in range(distinct)])

    def __call__(self, inputs: jax.Array, features: GraphFeatures) -> jax.Array:
        """``[B, N, W]`` float32 embeddings; those of padding mean nothing.

        Args:
          inputs: ``[B, N, I]`` float32, what is read of every op: `PolicyConfig.input_names`.
          features: Edges and masks.
        """
        batch, n, _ = inputs.shape
        embedding = self.node(inputs)
        if not self.times:
            return embedding
        # The graphs of a batch are one graph without edges between them: gathers then copy whole rows.
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

    def __init__(self, width: int, *, rngs: nnx.Rngs) -> None:
        # The hidden layer of both message MLPs, cut by what it is applied to: an op as the sender and as the
        # receiver of an edge (once an op, not once an edge), and the edge. Forward comes before backward.
        self.from_op = nnx.Linear(width, 4 * width, use_bias=False, rngs=rngs)
        self.from_edge = nnx.Linear(width, 2 * width, rngs=rngs)
        self.message = nnx.Linear(2 * width, width, use_bias=False, rngs=rngs)
        self.update = Mlp(2 * width, width, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)

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
        # One scatter, forward sums first: on CPUs it is half the price of two.
        ends = jnp.concatenate([receivers, senders + n])
        sums = jax.ops.segment_sum(jnp.concatenate([hidden[:, :width], hidden[:, width:]]), ends, 2 * n)
        messages = self.message(jnp.concatenate([sums[:n], sums[n:]], axis=1))
        return self.norm(embedding + self.update(jnp.concatenate([embedding, messages], axis=1)))
