"""jax functions with an implementation per platform: Pallas kernels, vendor libraries, or plain jax."""
