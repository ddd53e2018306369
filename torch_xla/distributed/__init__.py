"""Many devices: processes, collectives between them, torch.distributed."""
