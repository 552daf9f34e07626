"""A rank of mlx-lm's tensor-parallel run: `sharded_mlx_lm.py FOLDER TOKENS PROMPT`; rank 0 prints its speeds."""

import json
import sys

import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.utils import sharded_load

folder, tokens, prompt = sys.argv[1], int(sys.argv[2]), sys.argv[3]
group = mx.distributed.init(strict=True)
model, tokenizer = sharded_load(folder, None, group)
tokenizer.eos_token_ids = set()
*_, response = stream_generate(model, tokenizer, prompt, max_tokens=tokens, prefill_step_size=4096)
if group.rank() == 0:
    speeds = {"prefill": response.prompt_tps, "decode": response.generation_tps}
    print(json.dumps({f"{what}_tokens_per_second": speed for what, speed in speeds.items()}))
