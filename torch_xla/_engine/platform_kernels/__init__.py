"""Functions of jax with an implementation per platform: Pallas kernels and libraries of the device, or plain jax."""
