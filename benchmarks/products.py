"""Products of float32 matrices by the library that PyTorch calls and by oneDNN, on one thread, against the processor's own limit.

    python benchmarks/products.py [--repeats 50]

A large model's step is such products. MKL uses 512-bit vectors on Intel's processors only; the record of a step takes oneDNN where
the processor has them and is another's (`fedskew.core.products.onednn_is_faster`). The table shows what that gains, and from how
many multiplications on.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from fedskew.core.products import LARGE, onednn_is_faster

SHAPES = (
    ("MLP 561-128, first layer", 64, 561, 128),
    ("its gradient", 128, 64, 561),
    ("CNN 4096-512, hidden layer", 50, 4096, 512),
    ("its gradient", 512, 50, 4096),
    ("encoder, 32 x 64 words of 384", 2048, 384, 384),
    ("64 x 128 x 128", 64, 128, 128),
    ("32 x 64 x 64", 32, 64, 64),
)


def microseconds(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats + 3):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    onednn = torch.ops.mkldnn._linear_pointwise
    print(
        f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}; by oneDNN here: {onednn_is_faster()},"
    )
    print(f"from {LARGE:,} multiplications")
    for name, m, k, n in SHAPES:
        a, b = torch.randn(m, k), torch.randn(n, k)
        given = microseconds(lambda a=a, b=b: torch.mm(a, b.t()), parsed.repeats)  # type: ignore[misc]
        other = microseconds(lambda a=a, b=b: onednn(a, b, None, "none", [], ""), parsed.repeats)  # type: ignore[misc]
        rates = ", ".join(f"{us:8.1f} us ({2 * m * k * n / us / 1000:4.0f} GFLOP/s)" for us in (given, other))
        print(f"{name:32} {m * k * n:12,}: {rates}  {given / other:.2f}x")


if __name__ == "__main__":
    main()
