"""The cost of a training job on 8 to 4,096 chips, from compiled programs: ``python -m benchmarks.scaling``."""
