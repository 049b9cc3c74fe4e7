"""Settings that every test runs under: strict promotion, several CPU devices, quiet hypothesis."""

import signal

import hypothesis
import jax

# Whoever runs the tests in the background of a shell hands them an ignored SIGINT, and all they start, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Four virtual CPU devices: the sharding and placement tests need more than one.
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("default")
