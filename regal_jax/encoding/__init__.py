"""Genes: conversion to decisions and back, and the distribution that they are drawn from."""

from regal_jax.encoding.encode import encode
from regal_jax.encoding.genes import Genes, decode, gene_shapes, genes_to_keys
from regal_jax.encoding.moves import PlanMoves
from regal_jax.encoding.proposal import Proposal, quantile_table, quantiles, uniform_proposal

__all__ = [
    "Genes",
    "PlanMoves",
    "Proposal",
    "decode",
    "encode",
    "gene_shapes",
    "genes_to_keys",
    "quantile_table",
    "quantiles",
    "uniform_proposal",
]
