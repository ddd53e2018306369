"""All private names of torch and jax that torch_xla uses; no other module accesses private names.

    private_api.py        the declaration of a name: purpose, and what happens in a release without it
    public_names.py       the public names that torch_xla uses, and which are missing
    import_failure.py     why an untested release cannot be imported
    dispatcher.py         operators: schemas, kernels, decompositions
    autograd.py           autograd: saved-tensor hooks
    control_flow.py       torch's control flow operators
    flex_attention.py     torch's flex_attention
    nested.py             jagged nested tensors
    dynamo.py             torch.compile's tracer; pytrees; jax's trace context
    torch_modules.py      nn.Module, DataLoader, optimizers, GradScaler, DistributedDataParallel, checkpointing
    serialization.py      torch.save, torch.load
    distributed.py        process groups; jax's coordination service and the CPU's collectives
    cluster_detection.py  jax's detection of clusters
    sharding.py           shardings with another device order
    shard_alike.py        jax.experimental.shard_alike
    lax_scan.py           32-bit loop counters on TPUs
    pjrt_execution.py     launches of compiled programs without Python
    contraction_kernel.py a matrix multiplication of jaxlib that signal handlers must not interrupt
    xprof.py              profiles of other processes
    process_exit.py       process exit and forks
    debug_options.py      XLA's parsed flags
    pallas_attention.py   jax's flash attention for TPUs; torch's quantized operators

``python -m torch_xla._engine.compat`` lists the names, and which of them the installed torch and jax have.
"""
