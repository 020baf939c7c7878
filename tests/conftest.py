"""Settings that every test shares."""

import jax
from jaxtyping import install_import_hook

# A GPU would otherwise multiply float32 in TF32, below the tolerances that the tests derive.
jax.config.update("jax_default_matmul_precision", "highest")

# Array annotations of the library are checked at run time, in the tests only.
install_import_hook(["sparsemlp", "pallas_kernels"], "beartype.beartype")
