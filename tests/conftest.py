"""Settings that every test runs under: strict promotion, several CPU devices, quiet hypothesis."""

import hypothesis
import jax

# Four virtual CPU devices: the sharding and placement tests need more than one.
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("default")
