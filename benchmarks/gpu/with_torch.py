"""PyTorch as an engine: a small Llama with a static cache, its decode step compiled, bf16 random weights."""

import time
from typing import Any

import torch
from peers.models import Shape
from peers.worker import Engine, serve
from torch import Tensor, nn
from torch.nn import functional

from gpu.work import GROWTH, MODELS

_DTYPE = torch.bfloat16


class Layer(nn.Module):
    """One decoder layer with its part of the cache."""

    def __init__(self, shape: Shape, batch: int, context: int) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.kv_heads * shape.head_dim
        self.qkv = nn.Linear(shape.hidden, shape.hidden + 2 * kv, bias=False)
        self.o = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)
        self.attention_norm = nn.RMSNorm(shape.hidden, 1e-5)
        self.mlp_norm = nn.RMSNorm(shape.hidden, 1e-5)
        cache = (batch, shape.kv_heads, context, shape.head_dim)
        self.register_buffer("keys", torch.randn(cache))
        self.register_buffer("values", torch.randn(cache))

    def forward(self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """x: [batch, 1, hidden]; position: [1]; cos, sin: [1, head_dim]; mask: [1, 1, 1, context]."""
        shape, batch = self.shape, x.shape[0]
        kv = shape.kv_heads * shape.head_dim
        q, k, v = self.qkv(self.attention_norm(x)).split([shape.hidden, kv, kv], dim=-1)
        q = _rotated(q.view(batch, 1, shape.heads, -1).transpose(1, 2), cos, sin)
        k = _rotated(k.view(batch, 1, shape.kv_heads, -1).transpose(1, 2), cos, sin)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v.view(batch, 1, shape.kv_heads, -1).transpose(1, 2))
        y = functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, 1, -1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    """A decode step: from tokens to the next tokens."""

    def __init__(self, shape: Shape, theta: float, batch: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, batch, context) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, 1e-5)
        self.output = nn.Linear(shape.hidden, shape.vocab, bias=False)
        rates = theta ** -(torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(context).float(), rates)
        self.register_buffer("cos", angles.cos().to(_DTYPE).repeat(1, 2))
        self.register_buffer("sin", angles.sin().to(_DTYPE).repeat(1, 2))
        self.register_buffer("places", torch.arange(context))

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """tokens: [batch, 1], position: [1]; the next tokens, [batch, 1]."""
        x = self.embedding(tokens)
        mask = (self.places <= position)[None, None, None]
        for layer in self.layers:
            x = layer(x, position, self.cos[position], self.sin[position], mask)
        return self.output(self.norm(x)).argmax(-1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Torch(Engine):
    """A compiled step and its model."""

    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Makes the model for so many sequences and so long a context, compiles the step, and runs it."""
        gpu = MODELS[options["model"]]
        self._model = self._step = None
        torch._dynamo.reset()
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        if self._device == "cuda":
            torch.cuda.empty_cache()
        torch.set_default_dtype(_DTYPE)
        with torch.device(self._device), torch.no_grad():
            self._model = Llama(gpu.shape, gpu.theta, options["batch"], options["context"]).eval()
            for parameter in self._model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.02)
        compiled = options["mode"] != "eager"
        self._step = torch.compile(self._model, mode=options["mode"], fullgraph=True) if compiled else self._model
        self.decode(1, options["batch"], 4)
        return {"version": torch.__version__}

    @torch.no_grad()
    def decode(self, context: int, batch: int, tokens: int) -> tuple[float, int]:
        """See Engine; the cache holds random numbers."""
        assert tokens <= GROWTH, "the cache has room for no more"
        chosen = torch.ones((batch, 1), dtype=torch.long, device=self._device)
        position = torch.tensor([context], device=self._device)
        for _ in range(2):
            chosen = self._step(chosen, position).clone()
        self._wait()
        start = time.perf_counter()
        for _ in range(tokens):
            chosen = self._step(chosen, position).clone()
            position += 1
        self._wait()
        return time.perf_counter() - start, tokens

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()

    def prefill(self, tokens: int) -> float:
        """Not measured."""
        raise NotImplementedError("torch is compared in decoding only")

    def first_token(self) -> None:
        """Not measured."""
        raise NotImplementedError("torch is compared in decoding only")


if __name__ == "__main__":
    serve(Torch())
