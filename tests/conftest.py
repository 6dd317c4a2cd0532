"""Eight virtual CPU devices; accidental rank promotion is an error.

Programs are compiled without LLVM's optimisations: the tests' are small and run
once, so that compiling them is most of the suite's time.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + " --xla_backend_optimization_level=0"
)

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
