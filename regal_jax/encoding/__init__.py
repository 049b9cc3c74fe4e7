"""Genes: conversion to decisions and back, and the distribution that they are drawn from."""

from regal_jax.encoding.encode import encode
from regal_jax.encoding.genes import Genes, decode, gene_shapes, genes_to_keys
from regal_jax.encoding.moves import PlanMoves
from regal_jax.encoding.proposal import Proposal, quantile_table, quantiles, uniform_proposal
from regal_jax.encoding.schedule import encode_schedule, preferences, schedule_shapes
from regal_jax.encoding.schedule_moves import ScheduleMoves, SchedulePrior, draw_schedule, schedule_prior

__all__ = [
    "Genes",
    "PlanMoves",
    "Proposal",
    "ScheduleMoves",
    "SchedulePrior",
    "decode",
    "draw_schedule",
    "encode",
    "encode_schedule",
    "gene_shapes",
    "genes_to_keys",
    "preferences",
    "quantile_table",
    "quantiles",
    "schedule_prior",
    "schedule_shapes",
    "uniform_proposal",
]
