"""The formats that regal_jax reads: valid files, written by the package where it can, and readers."""

import dataclasses
import functools
import json
import struct

import jax
import jax.numpy as jnp
from importer_cases import COST_GRAPH, NATIVE, STG, WORKFLOW
from learning_cases import tiny_config
from policy_cases import BEFORE

from regal_jax import optimize
from regal_jax.corpus import read_family_splits
from regal_jax.corpus.finish import finish
from regal_jax.datasets import build_set, corpus_records, generate
from regal_jax.datasets.corpus_files import write_corpus
from regal_jax.datasets.manifest import choices_from_text
from regal_jax.datasets.store import read_set
from regal_jax.experiments import EvaluationConfig, TunedConfig, run_evaluation
from regal_jax.experiments.records import Records, read_evaluation
from regal_jax.experiments.rounds import best_validation
from regal_jax.experiments.tuning import _known as known_points
from regal_jax.gflownet import (
    GflownetConfig,
    SchedulePolicy,
    load_gflownet,
    read_gflownet_metadata,
    save_gflownet,
)
from regal_jax.graph import Cluster
from regal_jax.importers import load_graph, save_graph
from regal_jax.learning import TrainConfig
from regal_jax.learning.checkpoint import Checkpoints
from regal_jax.learning.gflownet import GflownetTrainConfig
from regal_jax.learning.loop import begin_run, run_identity
from regal_jax.learning.ordering import OrderTrainConfig
from regal_jax.learning.record import Record
from regal_jax.learning.reference import _read as read_references
from regal_jax.learning.step import Learner
from regal_jax.learning.validate import Validation
from regal_jax.ordering import (
    Topoformer,
    TopoformerConfig,
    load_topoformer,
    read_topoformer_metadata,
    save_topoformer,
)
from regal_jax.plan import Plan
from regal_jax.policies import Policy, PolicyConfig, load_policy, read_metadata, save_policy
from regal_jax.policies.conversion import EARLIER, translated
from regal_jax.search import BrkgaConfig

GRAPH = generate("layered", 12, seed=0)


def written(name, save):
    """The bytes that ``save(path)`` writes."""

    def files(folder):
        path = folder / name
        save(path)
        return [path.read_bytes()]

    return files


def texts(*given):
    return lambda folder: [text.encode() for text in given]


def reading(name, read):
    """The result of ``read(path)`` for a file with these bytes."""

    def run(data, folder):
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return run


def graphs(suffix, *more):
    def files(folder):
        save_graph(GRAPH, folder / f"graph{suffix}", **({"lossy": True} if suffix == ".stg" else {}))
        return [(folder / f"graph{suffix}").read_bytes(), *(text.encode() for text in more)]

    return files


def hlo_program(folder):
    def step(x, w):
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ w), x).sum()

    square = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    return [jax.jit(jax.grad(step)).lower(square, square).compile().as_text().encode()]


def onnx_model(folder):
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Reshape", ["z", "s"], ["out"]),
    ]
    weights = [
        helper.make_tensor("w", TensorProto.FLOAT, [4, 3, 3, 3], [0.0] * 108),
        helper.make_tensor("s", TensorProto.INT64, [2], [1, -1]),
    ]
    ends = [info("x", TensorProto.FLOAT, [1, 3, 8, 8])], [info("out", TensorProto.FLOAT, [1, 256])]
    made = helper.make_model(helper.make_graph(nodes, "g", *ends, weights))
    made.opset_import[0].version = 17
    return [made.SerializeToString()]


def mutate_onnx(data, rng):
    """Changes, drops or duplicates one field of the model."""
    import onnx

    model = onnx.ModelProto.FromString(data)
    message = model
    while True:
        fields = message.ListFields()
        below = [
            item
            for field, value in fields
            if field.message_type is not None
            for item in (value if field.is_repeated else [value])
        ]
        if not fields or not below or rng.random() < 0.3:
            break
        message = rng.choice(below)
    if not fields:
        raise ValueError("nothing to change")
    field, value = rng.choice(fields)
    if rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.is_repeated:
        if rng.random() < 0.5:
            value.extend(list(value)[:2])
        else:
            del value[rng.randrange(len(value)) :]
    elif isinstance(value, int):
        number = rng.choice([0, -1, 1, 2**31 - 1, -(2**31), 2**62, 10**18, 7])
        setattr(message, field.name, number % 2**31 if field.cpp_type in (1, 8) else number)
    elif isinstance(value, str):
        setattr(message, field.name, rng.choice(["", "x", "y", "z", "w", "a\nb", "\0", "Loop", "If", "Gemm"]))
    elif isinstance(value, bytes):
        setattr(message, field.name, rng.choice([b"", b"\xff", value * 2]))
    return model.SerializeToString()


def policy_file(folder):
    from flax import nnx

    path, files = folder / "policy.safetensors", []
    for config in (PolicyConfig(rounds=1, width=4), translated(BEFORE)):
        save_policy(path, Policy(config, rngs=nnx.Rngs(0)), {"validation_improvement": "0.5"})
        files.append(path.read_bytes())
    return [files[0], as_version_5(files[1])]


def topoformer_file(folder):
    from flax import nnx

    path = folder / "topoformer.safetensors"
    config = TopoformerConfig(layers=1, width=4, head_width=2, heads=(1, 0, 0, 1, 0, 0, 2), eigenvectors=2)
    save_topoformer(path, Topoformer(config, rngs=nnx.Rngs(0)), {"training": '{"epochs": 3, "seed": 1}'})
    return [path.read_bytes()]


def read_topoformer(path):
    read_topoformer_metadata(path)
    return load_topoformer(path)


def gflownet_file(folder):
    from flax import nnx

    path = folder / "gflownet.safetensors"
    config = GflownetConfig(devices=2, layers=1, width=4, head_width=2, temperature_width=3)
    save_gflownet(path, SchedulePolicy(config, rngs=nnx.Rngs(0)), {"training": '{"epochs": 3, "seed": 1}'})
    return [path.read_bytes()]


def read_gflownet(path):
    read_gflownet_metadata(path)
    return load_gflownet(path)


def as_version_5(data):
    """A file of weights whose config is `BEFORE`, as releases of that time wrote it."""
    length = int.from_bytes(data[:8], "little")
    document = json.loads(data[8 : 8 + length])
    document["__metadata__"] |= {"version": EARLIER, "config": json.dumps(BEFORE)}
    header = json.dumps(document).encode()
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def mutate_safetensors(data, rng):
    """Mutates the header, its metadata, or the documents in the metadata."""
    from fuzz import mutate_bytes, mutate_json

    length = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + length].decode(), data[8 + length :]
    what = rng.random()
    if what < 0.6:
        document = json.loads(header)
        texts = document["__metadata__"]
        key = rng.choice([name for name in texts if name != "format"])
        texts[key] = mutate_json(texts[key], rng)
        header = json.dumps(document)
    elif what < 0.9:
        header = mutate_json(header, rng)
    else:
        rest = mutate_bytes(rest, rng)
        if rng.random() < 0.3:
            return struct.pack("<Q", rng.choice([0, 2**63, length + 8, 10**9])) + data[8:]
    return len(header.encode()).to_bytes(8, "little") + header.encode() + rest


def read_policy(path):
    read_metadata(path)
    best_validation(str(path))
    return load_policy(path)


@functools.cache
def tiny_state():
    """The initial state of the training of a small network."""
    return Learner(tiny_config()).init()


BEST = Validation(0.5, 1.0, 0.25, 0.75, 2.0)


def checkpoint(path):
    Checkpoints(path.parent).save(tiny_state(), {"best": BEST._asdict(), "best_step": 0})


def read_checkpoint(path):
    state, notes = Checkpoints(path.parent).restore(tiny_state())
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(tiny_state()), strict=True):
        assert (a == b).all()
    assert Validation(**notes["best"]) == BEST


def toml(config):
    """A table as TOML."""

    def lines(table, path):
        inner = {name: value for name, value in table.items() if isinstance(value, dict)}
        if path:
            yield f"[{path}]"
        for name, value in table.items():
            if name not in inner:
                yield f"{name} = {json.dumps(value)}"
        for name, value in inner.items():
            yield from lines(value, f"{path}.{name}" if path else json.dumps(name))

    return "\n".join(lines(config, "")) + "\n"


def dataset(name):
    def files(folder):
        build_set(folder / "set", sizes={"train": 3}, archive=name != "manifest.json")
        return [(folder / "set" / name).read_bytes()]

    return files


def open_set(path):
    """Resumes a build."""
    folder = path.parent / "set"
    folder.mkdir(exist_ok=True)
    path.replace(folder / "manifest.json")
    build_set(folder, sizes={"train": 3})


def choices(folder):
    build_set(folder / "set", sizes={"train": 3})
    return [json.dumps(json.loads((folder / "set/manifest.json").read_text())["members"]).encode()]


CORPUS_INDEX = {"path": "graphs/a/b.json.gz", "source": "a", "model": "b", "family": "f", "form": "forward"}
CORPUS_INDEX |= {"constructor": "b()", "ops": 9, "topology_hash": "12ab", "content_hash": "34cd"}


def corpus_document(folder):
    roles = {CORPUS_INDEX["path"]: {"distinct": True, "represented_by": None, "split": "train"}}
    write_corpus(folder, {"settings": {"profile": "h200"}, "packages": {}, "graphs": roles})
    return [(folder / "corpus.json").read_bytes()]


def read_corpus_document(path):
    (path.parent / "index.jsonl").write_text(json.dumps(CORPUS_INDEX) + "\n")
    corpus_records(path.parent)
    finish(path.parent)


def read_corpus_index(path):
    corpus_document(path.parent)
    corpus_records(path.parent)
    finish(path.parent)


def evaluation(name):
    def files(folder):
        (folder / "graphs").mkdir()
        save_graph(GRAPH, folder / "graphs" / "graph.json")
        config = EvaluationConfig(
            str(folder / "graphs"), methods=("critical-path", "xla-best"), limits=(), evaluations=100
        )
        run_evaluation(config, folder / "out")
        return [(folder / "out" / name).read_bytes()]

    return files


def read_settings(path):
    return EvaluationConfig.from_document(EvaluationConfig.read(path))


def read_records(path):
    records = Records(path.parent)
    records.mend()
    return records.column("key", ["graph"], "value")


def read_metrics(path):
    best_validation(str(path.parent))
    with Record(path.parent, 5, tensorboard=False):
        pass


METRICS = "".join(
    json.dumps({"step": step, "kind": kind, "improvement": 0.25, "loss": -1.5}) + "\n"
    for step in (0, 1)
    for kind in ("train", "validation")
)
REFERENCES = json.dumps({"graph": "ab", "fitness": [0.5, 0.75], "settings": {"seed": 0, "seeds": 2}}) + "\n"
POINTS = json.dumps({"setup": "s", "config": dataclasses.asdict(BrkgaConfig()), "logs": [-1.0, -2.5]}) + "\n"


def read_points(path):
    from regal_jax.storage.json_lines import JsonLines

    return known_points(JsonLines(path), "s", 2)


def tuned(path):
    TunedConfig(BrkgaConfig(), 0.9, 5000, "makespan", 3, 4).save(path)


def plan(path):
    cluster = Cluster.uniform(2, "1GiB", "blocking:latency=5us,bandwidth=25GB/s")
    names = GRAPH.op_names
    optimize(
        GRAPH, cluster, method="critical-path", pin={names[0]: 1, names[-1]: (0, 1)}, colocate=names[1]
    ).save(path)


def read_plan(path):
    found = Plan.load(path)
    str(found)
    found.save(path)
    found.verify(GRAPH)


def settings_of_training(folder):
    return [toml(TrainConfig().as_document()).encode(), b"[policy]\nrounds = 2\n[search]\npopulation = 50\n"]


def settings_of_order_training(folder):
    return [toml(OrderTrainConfig().as_document()).encode(), b"[data]\nops = [3, 5]\n[model]\nwidth = 8\n"]


def settings_of_gflownet_training(folder):
    return [
        toml(GflownetTrainConfig().as_document()).encode(),
        b"[data]\nsubgraph = [3, 5]\n[ppo]\nclip = 0.1\n",
    ]


def settings_of_evaluation(folder):
    document = EvaluationConfig("sample", policies={"mine": "a.safetensors"}).as_document()
    document["rounds"] = {"2": ["runs/a"]}
    document["options"] = {"brkga": {"config": {"population": 50}}}
    return [toml(document).encode()]


def run_of_training(path):
    begin_run(path.parent, run_identity(tiny_config().as_document(), [GRAPH], [GRAPH]))


SPLITS = {"format": "regal_jax.family_splits", "version": 1, "packages": {}, "distinct": 1}
SPLITS["families"] = {"a": "train", "b": "test"}

FORMATS = {
    "native": (graphs(".json", NATIVE), "json", reading("g.json", load_graph), 2.0),
    "wfformat": (texts(WORKFLOW), "json", reading("g.json", load_graph), 2.0),
    "cost graph": (graphs(".pbtxt", COST_GRAPH), "text", reading("g.pbtxt", load_graph), 2.0),
    "stg": (texts(STG), "text", reading("g.stg", load_graph), 2.0),
    "onnx": (onnx_model, mutate_onnx, reading("g.onnx", load_graph), 1.0),
    "hlo": (hlo_program, "text", reading("g.hlo", load_graph), 1.0),
    "plan": (written("plan.json", plan), "json", reading("plan.json", read_plan), 2.0),
    "policy": (policy_file, mutate_safetensors, reading("p.safetensors", read_policy), 0.5),
    "topoformer": (topoformer_file, mutate_safetensors, reading("t.safetensors", read_topoformer), 0.5),
    "gflownet": (gflownet_file, mutate_safetensors, reading("g.safetensors", read_gflownet), 0.5),
    "training settings": (settings_of_training, "text", reading("run.toml", TrainConfig.load), 2.0),
    "order training settings": (settings_of_order_training, "text",
                                reading("run.toml", OrderTrainConfig.load), 2.0),
    "gflownet training settings": (settings_of_gflownet_training, "text",
                                   reading("run.toml", GflownetTrainConfig.load), 2.0),
    "run of training": (written("config.json", run_of_training), "json",
                        reading("config.json", run_of_training), 1.0),
    "checkpoint": (written("0.safetensors", checkpoint), mutate_safetensors,
                   reading("0.safetensors", read_checkpoint), 0.5),
    "evaluation settings": (settings_of_evaluation, "text", reading("e.toml", read_settings), 2.0),
    "evaluation": (evaluation("evaluation.json"), "json",
                   reading("evaluation.json", lambda p: read_evaluation(p.parent)), 1.0),
    "results": (evaluation("results.jsonl"), "text", reading("results.jsonl", read_records), 1.0),
    "tuned": (written("tuned.json", tuned), "json", reading("tuned.json", TunedConfig.load), 1.0),
    "points": (texts(POINTS * 2), "text", reading("points.jsonl", read_points), 1.0),
    "metrics": (texts(METRICS), "text", reading("metrics.jsonl", read_metrics), 1.0),
    "references": (texts(REFERENCES * 2), "text",
                   reading("references.jsonl", lambda p: read_references(p, {"seed": 0, "seeds": 2})), 1.0),
    "manifest": (dataset("manifest.json"), "json", reading("manifest.json", open_set), 0.1),
    "archive": (dataset("train.tar.gz"), "text", reading("train.tar.gz", read_set), 0.3),
    "choices": (choices, "json", reading("choices.json", choices_from_text), 1.0),
    "corpus": (corpus_document, "json", reading("corpus.json", read_corpus_document), 1.0),
    "corpus index": (texts(json.dumps(CORPUS_INDEX) + "\n"), "text",
                     reading("index.jsonl", read_corpus_index), 1.0),
    "family splits": (texts(json.dumps(SPLITS)), "json", reading("splits.json", read_family_splits), 1.0),
}  # fmt: skip
"""Name -> ``files(folder)``, the structure that is mutated, ``read(data, folder)``, and a weight."""
