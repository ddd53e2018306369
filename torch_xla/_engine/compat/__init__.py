"""All that torch_xla uses of torch and jax which they keep for themselves; no other module touches such a name.

    private_api.py       what an entry is: the name, what it is for, what happens where a release lacks it
    dispatcher.py    operators: schemas, which kernels there are, decompositions
    dynamo.py       torch.compile's tracer; nested values
    torch_modules.py       nn.Module, DataLoader, GradScaler, DistributedDataParallel
    serialization.py        torch.save, torch.load
    distributed.py   process groups; jax's job, its store and the CPU's collectives
    sharding.py      shardings in other orders of the devices
    xprof.py     profiles of other processes
    process_exit.py        the end of a process, and its forks
    debug_options.py         XLA's flags, as it has parsed them
    pallas_attention.py       jax's flash attention for TPUs; torch's operators of quantized graphs

``python -m torch_xla._engine.compat`` prints them, with what of them the installed torch and jax have.
"""
