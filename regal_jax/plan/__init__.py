"""Plans on the host: decoding, exact replay, verification, files.

This package imports neither JAX nor the simulator."""

from regal_jax.plan.adapt import adapt_plan
from regal_jax.plan.bounds import Objective, critical_path, lower_bound, makespan_upper_bound, parallelism
from regal_jax.plan.comparison import PlanComparison
from regal_jax.plan.contraction import Contraction, contract, contract_for
from regal_jax.plan.decode import decode_order, decode_placement
from regal_jax.plan.drafts import BestDraft
from regal_jax.plan.fitness import plan_fitness
from regal_jax.plan.limits import ROUNDING, meets_bound, overflow_of, rounded_up, why_impossible
from regal_jax.plan.order_bound import Lives, least_peak, order_bound
from regal_jax.plan.plan import Plan, PlanStatus, proof_of, proven_status
from regal_jax.plan.replay import Timeline, outcome, replay, transfer_event
from regal_jax.plan.schedule import insert_transfers, needed_transfers
from regal_jax.plan.verify import check_graph, verify

__all__ = [
    "ROUNDING",
    "BestDraft",
    "Contraction",
    "Lives",
    "Objective",
    "Plan",
    "PlanComparison",
    "PlanStatus",
    "Timeline",
    "adapt_plan",
    "check_graph",
    "contract",
    "contract_for",
    "critical_path",
    "decode_order",
    "decode_placement",
    "insert_transfers",
    "least_peak",
    "lower_bound",
    "makespan_upper_bound",
    "meets_bound",
    "needed_transfers",
    "order_bound",
    "outcome",
    "overflow_of",
    "parallelism",
    "plan_fitness",
    "proof_of",
    "proven_status",
    "replay",
    "rounded_up",
    "transfer_event",
    "verify",
    "why_impossible",
]
