#!/usr/bin/env python3
"""Peak memory and time of `monodraft inspect` and `monodraft pack` on a synthetic bf16 checkpoint of 2 GB.

    python benchmarks/checkpoint_memory.py [--gigabytes 2] [--folder DIR] [--limit 500] [--json]

Protocol: a checkpoint of the DeepSpec Qwen3 family with random weights is written to a temporary folder (twice its size
must be free); each command then runs once in a process of its own, and its peak resident set is what the kernel reports
when it ends (ru_maxrss of wait4). This process imports nothing heavy, so that nothing of its own is inherited. Leaves
with 1 if a peak is above `--limit` megabytes (10^6 bytes).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAKE = """
import json, sys
from pathlib import Path
import numpy as np
from monodraft.checkpoint import write_config
from monodraft.checkpoint.config import Activation, DraftConfig, Family, MarkovKind, Norm
from monodraft.checkpoint.layout import tensor_specs
from monodraft.checkpoint.writer import OutputTensor, write_safetensors
from monodraft.formats import bf16

folder, gigabytes = Path(sys.argv[1]), float(sys.argv[2])
layers = max(1, round((gigabytes * 1e9 / 2 - 520e6) / 101e6))
config = DraftConfig(
    family=Family.QWEN3, architecture="Qwen3DSparkModel", hidden_size=2560, num_layers=layers, num_heads=32,
    num_kv_heads=8, head_dim=128, ffn_size=9728, vocab_size=81920, block_size=7, mask_token_id=81919,
    target_layer_ids=(1, 9, 17, 25, 33), rms_norm_eps=1e-6, norm=Norm.RMS, activation=Activation.SILU, swiglu=None,
    rope_theta=1e6, rotary_dim=128, max_positions=40960, windows=(None,) * layers, markov=MarkovKind.VANILLA,
    markov_rank=256, has_confidence=True, confidence_with_markov=True, mxfp8_linears=False, ships_embeddings=True,
)
weights = bf16.encode(np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32) * 0.02).tobytes()

def chunks(size):
    while size:
        part = weights[: min(size, len(weights))]
        size -= len(part)
        yield part

outputs = []
for spec in tensor_specs(config):
    size = 2
    for n in spec.shape:
        size *= n
    outputs.append(OutputTensor(spec.name, "BF16", spec.shape, lambda size=size: chunks(size)))
write_safetensors(folder / "model.safetensors", outputs, lambda count: None)
(folder / "config.json").write_text(json.dumps(write_config(config)))
"""


def measure(*command: str) -> tuple[float, float, str]:
    """Peak resident set in MB, seconds and standard output of a command that must succeed."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        out.seek(0)
        text = out.read().decode()
    if status:
        sys.exit(f"{' '.join(command)} failed")
    return usage.ru_maxrss * 1024 / 1e6, seconds, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the checkpoint")
    parser.add_argument("--folder", help="where to put the temporary folder")
    parser.add_argument("--limit", type=float, default=500.0, help="largest allowed peak in MB")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    monodraft = [sys.executable, "-m", "monodraft.cli.app"]
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="monodraft-memory-") as place:
        source, packed = Path(place) / "source", Path(place) / "packed"
        source.mkdir()
        subprocess.run([sys.executable, "-c", MAKE, str(source), str(options.gigabytes)], check=True)
        size = (source / "model.safetensors").stat().st_size
        commands = {
            "python alone": [sys.executable, "-c", "pass"],
            "inspect": [*monodraft, "inspect", str(source), "--json"],
            "inspect --values": [*monodraft, "inspect", str(source), "--json", "--values"],
            "pack": [*monodraft, "pack", str(source), str(packed), "--json"],
            "pack, MXFP8 already": [*monodraft, "pack", str(packed), str(packed) + "2", "--json"],
        }
        for name, command in commands.items():
            peak, seconds, _ = measure(*command)
            rows.append({"command": name, "peak_mb": round(peak, 1), "seconds": round(seconds, 2)})
    within = all(row["peak_mb"] < options.limit for row in rows)
    if options.json:
        print(
            json.dumps({"checkpoint_bytes": size, "limit_mb": options.limit, "within": within, "rows": rows}, indent=2)
        )
    else:
        print(f"checkpoint of {size / 1e9:.2f} GB; limit {options.limit:.0f} MB")
        print(f"{'command':<22}{'peak MB':>10}{'seconds':>10}")
        for row in rows:
            print(f"{row['command']:<22}{row['peak_mb']:>10}{row['seconds']:>10}")
    sys.exit(not within)


if __name__ == "__main__":
    main()
