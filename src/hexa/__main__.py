"""`python -m hexa`, which torchrun needs: `torchrun --nproc-per-node 2 -m hexa pretrain …`."""

import sys

from hexa.cli import main

if __name__ == "__main__":
    sys.exit(main())
