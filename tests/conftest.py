"""Settings of all tests: strict promotion, several CPU devices, quiet hypothesis, one cache."""

import gc
import os
import pathlib
import signal
import tempfile

import hypothesis
import jax
import pytest

from regal_jax.programs import clear, traced

# Much of the tests' work is compiling programs that run once. LLVM's passes are a third of what that takes,
# XLA's emitters of fusions through MLIR half of the rest; JAX 0.11 has no others. JAX reads the flags when it
# is first used, here and in processes that are started. Flags that are already set stay.
FLAGS = {"xla_backend_optimization_level": "0", "xla_cpu_parallel_codegen_split_count": "1"}
if jax.__version_info__ < (0, 11):
    FLAGS["xla_cpu_use_fusion_emitters"] = "false"
for flag, value in FLAGS.items():
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{flag}={value}".strip()

# Nobody reads from which line of the source an operation of a lowered program comes.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
os.environ.setdefault("JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS", "false")
jax.config.update("jax_traceback_in_locations_limit", 0)
jax.config.update("jax_include_full_tracebacks_in_locations", False)

# Tracing makes millions of small objects, of which few are garbage: garbage collection was a tenth of the
# work.
gc.set_threshold(50_000, 20, 100)

# One folder for the programs that this session compiles. Its workers, and the processes that tests start,
# inherit the names and need many of the same programs.
CACHE = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    CACHE = tempfile.TemporaryDirectory(prefix="regal-jax-tests-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE.name
    os.environ.setdefault("REGAL_JAX_CACHE", CACHE.name)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_compilation_cache_dir", CACHE.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

# The processes that tests start import the library many times. Unless its bytecode is kept, as Python does by
# default, each of them compiles the source again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests that run in the background of a shell inherit an ignored SIGINT, and so do their child processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Other workers need the cores, and processes that tests start would compile for nothing.
os.environ.setdefault("REGAL_JAX_AHEAD", "off")

# Four virtual CPU devices: the sharding and placement tests need more than one.
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("default")

# The longest files start first, so that no worker runs one of them alone at the end. In a new clone the first
# one compiles most of Numba's functions. The next two need few of them, so that workers compile them once.
LONGEST = (
    "test_notebooks",
    "test_execution_torch",
    "test_corpus",
    "test_generate_memory",
    "test_auto",
    "test_distributed",
    "test_simulate",
    "test_solvers",
    "test_learning_step",
    "test_benchmarks",
    "test_generate",
    "test_api",
    "test_ray",
    "test_learning_resume",
    "test_search",
    "test_certify",
    "test_regal_faithful",
    "test_programs",
    "test_interrupt_storm",
    "test_pallas",
    "test_cli_batch",
    "test_traced",
    "test_learning_ordering",
    "test_ordering_beam",
    "test_datasets_topologies",
    "test_realistic",
    "test_oracles",
    "test_host",
    "test_learning_data",
    "test_from_jax",
    "test_datasets_sets",
    "test_from_torch",
    "test_gflownet_train",
    "test_ordering_autoregressive",
    "test_learning_reinforce",
    "test_evaluation_run",
    "test_methods",
    "test_links",
    "test_policies_networks",
    "test_doctests",
    "test_engines",
    "test_engines_commands",
    "test_limits",
    "test_defaults",
    "test_fuzz",
    "test_exact",
    "test_examples",
    "test_policies_actions",
    "test_heuristics",
    "test_cli_train",
    "test_moves",
    "test_encoding",
    "test_solve",
    "test_search_conformance",
    "test_interrupts",
)
RANK = {name: rank for rank, name in enumerate(LONGEST)}


def pytest_configure(config):
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # Otherwise xdist begins with the files that have most tests.


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: RANK.get(item.path.stem, len(RANK)))


STORED = {"test_programs", "test_solvers", "test_traced"}
"""Files whose programs are also stored before they are lowered, as those of users are."""


@pytest.fixture(autouse=True, scope="module")
def _programs_of_few_files_are_stored(request):
    """Elsewhere they are only compiled; to export and import a program takes a tenth of such a test.

    Processes that tests start store theirs.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in STORED:
            patch.setattr(traced, "trace_folder", lambda: None)
        yield


UNDRAWN = {
    "test_engines_commands",
    "test_evaluation_cli",
    "test_evaluation_run",
    "test_evaluation_statistics",
    "test_realistic",
    "test_robust_suite",
    "test_suites",
    "test_topological_order",
}
"""Files with many reports of evaluations, whose pictures nobody looks at and most of whose time they take.

test_evaluation_plots.py draws each of them.
"""


@pytest.fixture(autouse=True, scope="module")
def _pictures_of_most_reports_are_empty(request):
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem in UNDRAWN:
            patch.setattr(
                "matplotlib.figure.Figure.savefig", lambda _, path, **options: pathlib.Path(path).touch()
            )
        yield


@pytest.fixture(autouse=True, scope="module")
def _garbage_is_looked_for_among_what_is_new():
    """Excludes the objects that a file of tests leaves in memory from garbage collection.

    The library drops programs by garbage collection, and tests do so between any two searches. Each
    collection would take seconds if it also examined what JAX keeps of earlier files.
    """
    yield
    clear()  # Compiled programs must be dropped first, since frozen objects are never collected.
    gc.freeze()


def pytest_unconfigure():
    if CACHE is not None:
        CACHE.cleanup()
