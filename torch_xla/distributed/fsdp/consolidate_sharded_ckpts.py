"""``python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts``: see state_dict_utils."""

from __future__ import annotations

import argparse

from torch_xla.distributed.fsdp.state_dict_utils import consolidate_sharded_model_checkpoints


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="One checkpoint of a whole model, out of those of FSDP's replicas")
    parser.add_argument("--ckpt_prefix", required=True, help="how the files begin, with their folder")
    parser.add_argument("--ckpt_suffix", default="*.pth", help="how they go on (default: %(default)s)")
    parser.add_argument("--save_path", default="", help="default: the prefix and _consolidated.pth")
    options = parser.parse_args()
    _, path = consolidate_sharded_model_checkpoints(options.ckpt_prefix, options.ckpt_suffix, options.save_path)
    print(f"saved {path}")


if __name__ == "__main__":
    main()
