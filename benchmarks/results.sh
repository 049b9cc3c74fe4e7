#!/usr/bin/env bash
# The commands of docs/results.md, in the order of its tables. Everything is written to the current folder. The evaluations
# continue an interrupted run when they run again. All of them take long: run the parts that you need.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
trained=$repository/regal_jax/policies/trained/regal-primed

# Settings -------------------------------------------------------------------------------------------------
cp "$trained/makespan-2.toml" "$trained/peak-memory-2.toml" .
awk '/<!-- nothing.toml -->/ {found = 1} on && /^```/ {exit} on; found && /^```toml/ {on = 1}' \
    "$repository/docs/training.md" > nothing.toml
echo 'cp_sat_seconds = 10' > cp.toml
echo 'other_seed = -1' > one.toml

# Graphs ---------------------------------------------------------------------------------------------------
regal-jax dataset build --out synthetic --train 300 --validation 50 --test 300 --filter-seed 0
regal-jax corpus build --out corpus

# Weights --------------------------------------------------------------------------------------------------
regal-jax tune --graphs synthetic/train --limit 24 --grid population=50,100 --grid elites=0.1,0.25 --grid mutants=0.1,0.3 \
    --grid elite_bias=0.6,0.7,0.8 --out tuned.json
regal-jax train makespan-2.toml --out runs/gas --set policy.network=sequence --set task.evaluations=300 --set optimizer.steps=200
regal-jax train makespan-2.toml --out runs/idrs --set policy.guided_share=1.0 --set search.population=100 --set search.elites=0 \
    --set search.mutants=100 --set task.evaluations=300 --set optimizer.steps=200
regal-jax train nothing.toml --out runs/nothing
for rounds in 0 1 2 4; do
    regal-jax train nothing.toml --out "runs/t$rounds" --set "policy.rounds=$rounds" --set optimizer.steps=300 \
        --set optimizer.validate_every=50
done
python - <<'PYTHON'
import dataclasses

from flax import nnx

from regal_jax.learning import TrainConfig
from regal_jax.policies import Policy, save_policy

SCALES = {"placement_scale": 10, "order_scale": 3, "priority_bias": -6, "affinity_bias": 6}
for settings, untrained, by_hand in (
    ("makespan-2.toml", "untrained.safetensors", "by-hand.safetensors"),
    ("peak-memory-2.toml", "untrained-memory.safetensors", "by-hand-memory.safetensors"),
    ("nothing.toml", "nothing-untrained.safetensors", None),
):
    config = TrainConfig.load(settings).policy
    save_policy(untrained, Policy(config, rngs=nnx.Rngs(0)))
    if by_hand:
        scaled = dataclasses.replace(config.ablation, **SCALES)
        save_policy(by_hand, Policy(dataclasses.replace(config, ablation=scaled), rngs=nnx.Rngs(0)))
PYTHON

# Synthetic graphs: table 1, figures, CP-SAT, overhead -----------------------------------------------------
regal-jax evaluate --suite regal --graphs synthetic/test --seeds 0,1 --limits none --out results/synthetic \
    --methods brkga,critical-path,gp-dfs,xla-best,random-search,local-search,tuned-brkga,list-search,auto,idrs,gas,regal-primed,untrained,by-hand,nothing,nothing-untrained \
    --policy regal-primed=default --policy untrained=untrained.safetensors --policy by-hand=by-hand.safetensors \
    --policy nothing=runs/nothing/policy.safetensors --policy nothing-untrained=nothing-untrained.safetensors \
    --policy gas=runs/gas/policy.safetensors --policy idrs=runs/idrs/policy.safetensors --tuned tuned.json
regal-jax evaluate --suite regal --graphs synthetic/test --seeds 0,1 --limits 1000,2000,5000,10000,20000,50000 --methods brkga,regal-primed \
    --policy regal-primed=default --rounds 0=runs/t0 --rounds 1=runs/t1 --rounds 2=runs/t2 --rounds 4=runs/t4 --out results/limits
regal-jax evaluate --config cp.toml --suite regal --graphs synthetic/test --limit 100 --limits none \
    --methods brkga,critical-path,list-search,auto,cp-sat --out results/exact
regal-jax evaluate --suite regal --graphs synthetic/test --limit 160 --chunk 16 --seeds 0,1,2 --limits none --methods brkga,regal-primed \
    --policy regal-primed=default --out results/overhead

# Small forms of the tables of the papers; docs/results.md has the tables, benchmarks/tables the results ------------
mkdir -p small && cd small
cp -r "$repository/regal_jax/policies/trained/regal-faithful" "$repository/regal_jax/policies/trained/regal-faithful-workshop" .
regal-jax dataset build --out fresh-64 --train 0 --validation 0 --test 64 --seed 25
regal-jax dataset build --out synthetic-64 --train 64 --validation 24 --test 0
regal-jax tune --graphs synthetic-64/train --limit 8 --evaluations 2000 --grid population=50,100 --grid elites=0.1,0.25 \
    --grid mutants=0.1,0.3 --grid elite_bias=0.6,0.8 --out tuned.json
regal-jax tune --graphs sample --objective peak-memory --limit 6 --max-ops 330 --evaluations 2000 --grid population=50,100 \
    --grid elites=0.1,0.25 --grid mutants=0.1,0.3 --grid elite_bias=0.6,0.8 --out tuned-memory.json
regal-jax train regal-faithful-workshop/makespan-2.toml --out gas --set policy.network=sequence --set data.train=synthetic-64 \
    --set data.validation=synthetic-64 --set optimizer.steps=60 \
    --set optimizer.learning_rate=0.005 --set optimizer.validate_every=20
regal-jax train regal-faithful/peak-memory-2.toml --out gas-memory --set policy.network=sequence --set optimizer.steps=60 \
    --set optimizer.learning_rate=0.005 --set optimizer.validate_every=20
for copies in 0 3; do
    regal-jax train regal-faithful-workshop/makespan-2.toml --out "noise-$copies" --set data.train=sample --set data.validation=sample \
        --set data.max_ops=330 --set "data.noisy_copies=$copies" --set optimizer.steps=60 \
        --set optimizer.learning_rate=0.005 --set optimizer.validate_every=20
done
for suite in table-1-synthetic-makespan table-1-real-makespan table-1-real-peak-memory memory-limits devices-4 \
    transfer-synthetic-to-real transfer-real-to-synthetic noise-copies training-set \
    figures-synthetic-makespan figures-real-makespan figures-real-peak-memory; do
    regal-jax evaluate --suite "$suite" --small --out "$suite"
done
cd ..

# Real graphs: makespan ------------------------------------------------------------------------------------
regal-jax evaluate --config one.toml --suite regal --graphs corpus --memory 16GiB --limits none --methods brkga,regal-primed \
    --policy regal-primed=default --out results/real
regal-jax evaluate --config one.toml --suite regal --graphs corpus --memory 16GiB --limits none --max-ops 12000 --out results/large \
    --methods brkga,gp-dfs,critical-path,xla-best,list-search,auto,regal-primed --policy regal-primed=default
regal-jax evaluate --config cp.toml --suite regal --graphs corpus --memory 16GiB --limits none --max-ops 1300 --out results/small \
    --methods brkga,critical-path,list-search,auto,cp-sat,regal-primed,untrained,by-hand,gas,idrs --policy regal-primed=default \
    --policy untrained=untrained.safetensors --policy by-hand=by-hand.safetensors --policy gas=runs/gas/policy.safetensors \
    --policy idrs=runs/idrs/policy.safetensors
regal-jax evaluate --config one.toml --suite regal --graphs corpus --memory 16GiB --limits none --max-ops 2600 --out results/middle \
    --methods brkga,critical-path,list-search,auto,regal-primed --policy regal-primed=default
regal-jax evaluate --config one.toml --suite regal --graphs corpus --memory 16GiB --transfer blocking:latency=5us,bandwidth=300GB/s \
    --limits none --max-ops 1300 --out results/costs --methods brkga,critical-path,list-search,auto,regal-primed,by-hand,gas \
    --policy regal-primed=default --policy by-hand=by-hand.safetensors --policy gas=runs/gas/policy.safetensors

# Real graphs: peak memory ---------------------------------------------------------------------------------
regal-jax evaluate --config one.toml --suite regal --graphs corpus --objective peak-memory --limits none --out results/memory \
    --methods brkga,gp-dfs,critical-path,xla-best,peak-balance,auto,regal-primed --policy regal-primed=default
regal-jax evaluate --suite regal --graphs corpus --objective peak-memory --limits none --max-ops 1300 --out results/small-memory \
    --methods brkga,gp-dfs,critical-path,xla-best,peak-balance,local-search,peak-search,auto,regal-primed,untrained,by-hand \
    --policy regal-primed=default --policy untrained=untrained-memory.safetensors --policy by-hand=by-hand-memory.safetensors
regal-jax evaluate --suite regal --graphs corpus --objective peak-memory --limits none --max-ops 2000 --chunk 8 \
    --methods brkga,regal-primed --policy regal-primed=default --out results/overhead-memory

# Realistic links and limits of memory ---------------------------------------------------------------------
regal-jax evaluate --suite realistic --cases 36 --methods auto,brkga --limits none --no-warm-up --out results/realistic

# Orders on one device -------------------------------------------------------------------------------------
regal-jax evaluate --config "$repository/benchmarks/topological_order_small.toml" --weights topoformer=default --out results/orders-small
regal-jax evaluate --config "$repository/benchmarks/topological_order_wide.toml" \
    --out results/orders-wide
regal-jax evaluate --config "$repository/benchmarks/topological_order.toml" --weights topoformer=default --out results/orders
for split in train validation; do
    regal-jax evaluate --config "$repository/benchmarks/real_orders.toml" --split "$split" --weights topoformer=default \
        --out "results/real-orders-$split"
done

# Networks of Tables 3 and 4: the same settings for all, except the learning rate of the autoregressive decoder, which
# does not learn at the higher rate.
networks=$repository/benchmarks/ordering_networks.toml
regal-jax train "$networks" --out runs/topoformer
regal-jax train "$networks" --out runs/topoformer-edges --set 'model.heads=[2, 2, 0, 2, 2, 0, 0]'
regal-jax train "$networks" --out runs/gat --set model.encoder=gat --set 'model.heads=[2, 2, 0, 2, 2, 0, 0]'
regal-jax train "$networks" --out runs/gat-forward --set model.encoder=gat --set 'model.heads=[2, 2, 0, 0, 0, 0, 0]'
regal-jax train "$networks" --out runs/transformer --set model.encoder=transformer
regal-jax train "$networks" --out runs/mlp --set model.encoder=mlp
regal-jax train "$networks" --out runs/standardised --set optimizer.standardise=true
regal-jax train "$networks" --out runs/logit-norm --set optimizer.standardise=true --set optimizer.logit_norm=0.001
regal-jax train "$networks" --out runs/topoformer-ar --set model.decoder=autoregressive --set optimizer.learning_rate=1e-4
regal-jax train "$networks" --out runs/gnn-ar --set model.encoder=transformer --set model.decoder=autoregressive \
    --set 'model.heads=[2, 2, 0, 2, 2, 0, 0]' --set optimizer.learning_rate=1e-4
regal-jax evaluate --config "$repository/benchmarks/topological_order_networks.toml" --out results/order-networks \
    --weights topoformer=runs/topoformer/policy.safetensors --weights topoformer-edges=runs/topoformer-edges/policy.safetensors \
    --weights gat=runs/gat/policy.safetensors --weights gat-forward=runs/gat-forward/policy.safetensors \
    --weights transformer=runs/transformer/policy.safetensors --weights mlp=runs/mlp/policy.safetensors \
    --weights standardised=runs/standardised/policy.safetensors --weights logit-norm=runs/logit-norm/policy.safetensors \
    --weights topoformer-ar=runs/topoformer-ar/policy.safetensors --weights gnn-ar=runs/gnn-ar/policy.safetensors

# Orders that XLA runs --------------------------------------------------------------------------------------
python -m benchmarks compile --memory --out results/compile.json

# Robust scheduling ----------------------------------------------------------------------------------------
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_small.toml" --methods list-scheduling,brkga,random --out results/robust
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_network.toml" --out results/robust-network
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_network.toml" --methods brkga --evaluations 2000000 --out results/robust-long
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_validation.toml" --out results/robust-validation
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_sources.toml" --out results/robust-sources
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_one_runs.toml" --out results/robust-one-runs
regal-jax train "$repository/benchmarks/gflownet/one_tuned.toml" --out runs/gflownet-one
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_one.toml" --weights gflownet:one=runs/gflownet-one/policy.safetensors \
    --out results/robust-one
