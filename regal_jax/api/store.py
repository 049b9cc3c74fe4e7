"""`PlanStore`: a folder that keeps plans under the hashes of their graphs."""

import hashlib
import json
import os
import pathlib
from collections.abc import Sequence

from regal_jax.errors import FormatError, PlanError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Plan
from regal_jax.plan.files import cluster_document
from regal_jax.storage.paths import folder_path

__all__ = ["PlanStore"]


class PlanStore:
    """Plans of finished searches, one file each: ``HASH-CALL.plan.json``.

    ``HASH`` is the content hash of the graph. ``CALL`` is a digest of the cluster and of all settings of the
    call, so that one folder may hold plans of several calls.

    Args:
      folder: The folder; created if missing.
      call: Digest of the settings.

    Raises:
      OSError: The folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], call: str) -> None:
        self._folder, self._call = folder_path(folder), call
        self._folder.mkdir(parents=True, exist_ok=True)

    def path(self, graph: ComputationGraph, cluster: Cluster) -> pathlib.Path:
        """The file of a graph's plan."""
        text = json.dumps([self._call, cluster_document(cluster)], sort_keys=True)
        call = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._folder / f"{graph.content_hash}-{call}.plan.json"

    def get(self, graph: ComputationGraph, cluster: Cluster) -> Plan | None:
        """The plan of a graph; ``None`` if there is none, or if it cannot be read or fails verification."""
        try:
            plan = Plan.load(self.path(graph, cluster))
            plan.verify(graph)
        except (FormatError, PlanError):
            return None
        return plan

    def found(
        self,
        graphs: Sequence[ComputationGraph],
        clusters: Sequence[Cluster],
        earlier: Sequence[Sequence[Plan]],
    ) -> dict[int, Plan]:
        """Index -> plan of the graphs that need no search: no ``earlier`` plan of the graph is better.

        Earlier plans are for the clusters and the objective of the call, those of each graph best first.
        """
        there = {}
        for member, (graph, cluster, plans) in enumerate(zip(graphs, clusters, earlier, strict=True)):
            plan = self.get(graph, cluster)
            if plan is not None and (not plans or plan.sort_key <= plans[0].sort_key):
                there[member] = plan
        return there

    def put(self, graph: ComputationGraph, cluster: Cluster, plan: Plan) -> None:
        """Writes a plan, all or nothing, unless its search was interrupted.

        Raises:
          FormatError: It cannot be written.
        """
        if plan.provenance.get("stopped") != "interrupted":
            plan.save(self.path(graph, cluster))
