"""All that torch_xla uses of torch and jax which they keep for themselves; no other module touches such a name.

    private.py       what an entry is: the name, what it is for, what happens where a release lacks it
    dispatcher.py    operators: schemas, which kernels there are, decompositions
    tracing.py       torch.compile's tracer; nested values
    modules.py       nn.Module, DataLoader, GradScaler, DistributedDataParallel
    saving.py        torch.save, torch.load
    distributed.py   process groups; jax's job, its store and the CPU's collectives
    sharding.py      shardings in other orders of the devices
    profiling.py     profiles of other processes
    ending.py        the end of a process, and its forks
    flags.py         XLA's flags, as it has parsed them
    kernels.py       jax's flash attention for TPUs; torch's operators of quantized graphs

``python -m torch_xla._engine.base.compat`` prints them, with what of them the installed torch and jax have.
"""
