"""`python -m hexa`, which torchrun needs: `torchrun --standalone --nproc-per-node 2 -m hexa pretrain …`."""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]  # the current folder, whose random.py or torch.py would be imported
    from hexa.cli import run

    run()
