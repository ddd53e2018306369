"""Many devices: processes and threads, collectives between them, loading for them, launching on machines."""
