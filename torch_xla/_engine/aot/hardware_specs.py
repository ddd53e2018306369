"""Published hardware specifications of accelerators, per chip, and the target configurations of their compilers.

The figures are the manufacturer's peak rates for dense matmuls. Sources, all public:

TPUs    Google Cloud documentation, "TPU v4", "TPU v5e", "TPU v5p", "TPU v6e": peak compute, HBM capacity and bandwidth,
        inter-chip interconnect bandwidth per chip
GPUs    NVIDIA's data sheets of the products, without sparsity; of their multiprocessors, the table of compute
        capabilities in the CUDA C++ programming guide
"""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 1 << 30
_T, _G = 1e12, 1e9


@dataclass(frozen=True, slots=True)
class ChipSpec:
    """One type of chip. ``flops`` per second by the dtype of the operands; bandwidths in bytes per second."""

    name: str
    title: str
    flops: dict[str, float]
    hbm_bytes: int
    hbm_bandwidth: float
    link_bandwidth: float  # sum over all links of a chip, in one direction
    source: str


@dataclass(frozen=True, slots=True)
class GpuSmSpec:
    """The streaming multiprocessors of a GPU, as XLA's GPU compiler requires them; sizes in bytes."""

    capability: tuple[int, int]
    count: int
    lanes: int  # float32 units per multiprocessor
    shared: int
    shared_optin: int  # maximum shared memory of one block
    threads: int
    l2: int
    clock_ghz: float


def _tpu(name: str, title: str, tflops: float, hbm_gib: int, gbytes: float, link_gbits: float) -> ChipSpec:
    # A float32 matmul is a sum of bfloat16 matmuls: one at the default precision, three at "high", six at "highest".
    flops = {"bf16": tflops * _T, "f32": tflops * _T}
    source = f"Google Cloud documentation, {title}"
    return ChipSpec(name, title, flops, hbm_gib * _GIB, gbytes * _G, link_gbits * _G / 8, source)


TPUS = {
    chip.name: chip
    for chip in (
        _tpu("v4", "TPU v4", 275, 32, 1200, 2400),
        _tpu("v5e", "TPU v5e", 197, 16, 819, 1600),
        _tpu("v5p", "TPU v5p", 459, 95, 2765, 4800),
        _tpu("v6e", "TPU v6e (Trillium)", 918, 32, 1640, 3584),
    )
}


def _gpu(
    name: str, title: str, bf16: float, tf32: float, f32: float, hbm_gb: float, gbytes: float, link_gbytes: float
) -> ChipSpec:
    flops = {"bf16": bf16 * _T, "f16": bf16 * _T, "tf32": tf32 * _T, "f32": f32 * _T}
    return ChipSpec(name, title, flops, int(hbm_gb * _G), gbytes * _G, link_gbytes * _G, f"NVIDIA data sheet, {title}")


GPUS = {
    chip.name: chip
    for chip in (
        _gpu("b200", "NVIDIA B200", 2250, 1125, 75, 180, 7700, 900),
        _gpu("h200", "NVIDIA H200", 989.4, 494.7, 66.9, 141, 4800, 450),
        _gpu("h100", "NVIDIA H100 80GB HBM3", 989.4, 494.7, 66.9, 80, 3350, 450),
        _gpu("a100", "NVIDIA A100-SXM4-80GB", 312, 156, 19.5, 80, 2039, 300),
        _gpu("a100-40gb", "NVIDIA A100-SXM4-40GB", 312, 156, 19.5, 40, 1555, 300),
        _gpu("l40s", "NVIDIA L40S", 362, 183, 91.6, 48, 864, 32),
        _gpu("l4", "NVIDIA L4", 121, 60, 30.3, 24, 300, 32),
    )
}

_HOPPER = GpuSmSpec((9, 0), 132, 128, 233472, 232448, 2048, 50 << 20, 1.98)
_AMPERE = GpuSmSpec((8, 0), 108, 64, 167936, 166912, 2048, 40 << 20, 1.41)

MULTIPROCESSORS = {
    "b200": GpuSmSpec((10, 0), 148, 128, 233472, 232448, 2048, 126 << 20, 1.965),
    "h200": _HOPPER,
    "h100": _HOPPER,
    "a100": _AMPERE,
    "a100-40gb": _AMPERE,
    "l40s": GpuSmSpec((8, 9), 142, 128, 102400, 101376, 1536, 96 << 20, 2.52),
    "l4": GpuSmSpec((8, 9), 58, 128, 102400, 101376, 1536, 48 << 20, 2.04),
}


def gpu_target_config(name: str) -> str:
    """Return the text of a GpuTargetConfigProto, which describes a GPU to XLA's compiler."""
    chip, parts = GPUS[name], MULTIPROCESSORS[name]
    major, minor = parts.capability
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {parts.shared}
  threads_per_core_limit: {parts.threads}
  core_count: {parts.count}
  fpus_per_core: {parts.lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(chip.hbm_bandwidth)}
  l2_cache_size: {parts.l2}
  clock_rate_ghz: {parts.clock_ghz}
  device_memory_size: {chip.hbm_bytes}
  shared_memory_per_block_optin: {parts.shared_optin}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{chip.title}"
"""


#: Names that PJRT plugins give to chips, where they differ from the titles.
_DEVICE_KINDS = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v6 lite": "v6e"}


def find_chip(device_kind: str) -> ChipSpec | None:
    """Return the specification of a chip by its PJRT device kind, such as ``TPU v5 lite``; None if unknown."""
    chips = TPUS | GPUS
    if device_kind in _DEVICE_KINDS:
        return chips[_DEVICE_KINDS[device_kind]]
    return next((chip for chip in chips.values() if device_kind in (chip.title, chip.title.split(" (")[0])), None)
