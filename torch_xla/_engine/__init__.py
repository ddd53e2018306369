from torch_xla._engine.base import engine_sources as _sources  # noqa: F401  # stamps the files before they are imported
