"""Training on several devices: processes, threads, hosts, and loading for them."""
