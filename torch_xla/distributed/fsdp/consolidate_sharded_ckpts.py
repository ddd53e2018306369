"""Merge the checkpoints of FSDP's replicas: ``python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts``."""

from __future__ import annotations

import argparse

from torch_xla.distributed.fsdp.state_dict_utils import consolidate_sharded_model_checkpoints


def main() -> None:
    """Parse the arguments and write the consolidated checkpoint."""
    parser = argparse.ArgumentParser(description="Merge the checkpoints of FSDP's replicas into one of the full model")
    parser.add_argument("--ckpt_prefix", required=True, help="common prefix of the files, with their folder")
    parser.add_argument("--ckpt_suffix", default="*.pth", help="pattern of the rest (default: %(default)s)")
    parser.add_argument("--save_path", default="", help="output file (default: the prefix and _consolidated.pth)")
    options = parser.parse_args()
    _, path = consolidate_sharded_model_checkpoints(options.ckpt_prefix, options.ckpt_suffix, options.save_path)
    print(f"saved {path}")


if __name__ == "__main__":
    main()
