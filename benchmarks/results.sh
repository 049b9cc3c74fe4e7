#!/usr/bin/env bash
# The commands of the tables of docs/results. Everything is written to the current folder. The evaluations
# continue an interrupted run when they run again. All of them take long: run the parts that you need.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Graphs ---------------------------------------------------------------------------------------------------
regal-jax dataset build --out fresh --train 0 --validation 0 --test 1000 --seed 25
regal-jax dataset build --out synthetic --train 300 --validation 50 --test 300
regal-jax corpus build --out corpus --split test --sources keras-applications,keras-hub,flax
regal-jax corpus build --out corpus --split test --sources timm --forms forward

# Weights --------------------------------------------------------------------------------------------------
# The settings of the policies that ship are beside their weights.
cp -r "$repository/regal_jax/policies/trained/regal-faithful" "$repository/regal_jax/policies/trained/regal-faithful-workshop" .
regal-jax train regal-faithful/makespan-2.toml --out gas --set policy.network=sequence --set data.train=synthetic \
    --set data.validation=synthetic
regal-jax train regal-faithful/peak-memory-2.toml --out gas-memory --set policy.network=sequence
regal-jax tune --graphs synthetic/train --limit 24 --grid population=50,100 --grid elites=0.1,0.25 --grid mutants=0.1,0.3 \
    --grid elite_bias=0.6,0.7,0.8 --out tuned.json
regal-jax tune --graphs sample --objective peak-memory --limit 24 --grid population=50,100 --grid elites=0.1,0.25 \
    --grid mutants=0.1,0.3 --grid elite_bias=0.6,0.7,0.8 --out tuned-memory.json

# Tables that were run in full --------------------------------------------------------------------------------
for suite in table-1-synthetic-makespan table-1-real-makespan larger-graphs-makespan real-links-2 real-links-4 memory-limits \
    table-1-real-peak-memory larger-graphs-peak-memory policy-peak-memory devices-4 devices-8; do
    regal-jax evaluate --suite "$suite" --out "results/$suite"
done
regal-jax evaluate --config "$repository/benchmarks/realistic.toml" --out results/realistic
regal-jax evaluate --config "$repository/benchmarks/policy_seconds.toml" --out results/policy-seconds

# Small forms of the other tables -----------------------------------------------------------------------------
regal-jax dataset build --out fresh-64 --train 0 --validation 0 --test 64 --seed 25
regal-jax dataset build --out synthetic-64 --train 64 --validation 24 --test 0
for copies in 0 3; do
    regal-jax train regal-faithful-workshop/makespan-2.toml --out "noise-$copies" --set data.train=sample --set data.validation=sample \
        --set data.max_ops=330 --set "data.noisy_copies=$copies" --set optimizer.steps=60 \
        --set optimizer.learning_rate=0.005 --set optimizer.validate_every=20
done
for suite in quality-synthetic-makespan transfer-synthetic-to-real transfer-real-to-synthetic noise-copies \
    training-set figures-synthetic-makespan figures-real-makespan figures-real-peak-memory; do
    regal-jax evaluate --suite "$suite" --small --out "results/$suite"
done

# The policy for insertion moves, and a minute of CP-SAT: fewer graphs, in all forms ------------------------------
mkdir -p families
cd families
regal-jax corpus build --out corpus --split test --sources keras-applications,keras-hub,flax --limit 40
for suite in insertion-policy-links-2 insertion-policy-links-4 insertion-policy-limits-2 \
    insertion-policy-limits-4 cp-sat-minute cp-sat-minute-peak-memory; do
    regal-jax evaluate --suite "$suite" --out "../results/$suite"
done
cd ..

# Families that no split has used ------------------------------------------------------------------------------
regal-jax corpus build --out new-families --sources transformers --forms forward --new-families
mkdir -p settings
cp "$repository/benchmarks/links_policy.toml" "$repository/benchmarks/limits_policy.toml" settings
regal-jax dataset build --out settings/synthetic --train 300 --validation 50 --test 300 --filter-seed 0
for devices in 2 4; do
    regal-jax train settings/links_policy.toml --out "links-$devices" --set "policy.num_devices=$devices"
done
regal-jax train settings/limits_policy.toml --out limits-2
for suite in new-families-makespan new-families-peak-memory new-families-links-2 new-families-links-4 new-families-limits; do
    regal-jax evaluate --suite "$suite" --small --out "results/$suite"
done
for suite in new-families-insertion-links-2 new-families-insertion-links-4 new-families-insertion-limits-2 \
    new-families-insertion-limits-4; do
    regal-jax evaluate --suite "$suite" --out "results/$suite"
done

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
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_validation.toml" --out results/robust-validation
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_sources.toml" --out results/robust-sources
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_one_runs.toml" --out results/robust-one-runs
regal-jax train "$repository/benchmarks/gflownet/one_tuned.toml" --out runs/gflownet-one
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_one.toml" --weights gflownet:one=runs/gflownet-one/policy.safetensors \
    --out results/robust-one
for seed in 0 1 2 3 4; do
    regal-jax train "$repository/benchmarks/gflownet/small_parts.toml" --out "runs/small$seed" --set "seed=$seed"
    regal-jax train "$repository/benchmarks/gflownet/middle_parts.toml" --out "runs/middle$seed" --set "seed=$seed" \
        --set "start=runs/small$seed/policy.safetensors"
    regal-jax train "$repository/benchmarks/gflownet/large_parts.toml" --out "runs/large$seed" --set "seed=$seed" \
        --set "start=runs/middle$seed/policy.safetensors"
done
regal-jax evaluate --config "$repository/benchmarks/robust_scheduling_trainings.toml" --out results/robust-scheduling-trainings
