from torch_xla._engine.base import sources as _sources  # noqa: F401  # stamps the files before they are imported
