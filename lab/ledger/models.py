"""The models of the ledger: Transformers in any sizes, and an LSTM translator."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from placeto_workloads import TrainingStep, nmt
from placeto_workloads.models.nmt import TranslationModel

DTYPES = {
    name: getattr(torch, name.removeprefix("mixed-"))
    for name in ("float32", "float16", "bfloat16", "mixed-float16")
}
LLAMA_CPP = "llama.cpp"
DTYPES[LLAMA_CPP] = torch.float32


class Float16Adam(torch.optim.Optimizer):
    """Adam of frameworks that train in float16: its weights and its state are of float32.

    The gradients of all weights are of float32 at once while it updates them, as in DeepSpeed.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:  # noqa: ARG002 (torch's signature)
        """Update the weights."""
        parameters = [weight for group in self.param_groups for weight in group["params"]]
        gradients = [weight.grad.float() for weight in parameters]
        for weight, gradient in zip(parameters, gradients, strict=True):
            state = self.state[weight]
            if not state:
                state["weight"] = weight.detach().float()
                state["mean"] = torch.zeros_like(gradient)
                state["square"] = torch.zeros_like(gradient)
                state["step"] = torch.zeros(())
            torch._fused_adam_(
                [state["weight"]], [gradient], [state["mean"]], [state["square"]], [],
                [state["step"]], lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0,
                amsgrad=False, maximize=False,
            )  # fmt: skip
            with torch.no_grad():
                weight.copy_(state["weight"])


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """Sizes of a stack of Transformer layers, and of one micro-batch of its step.

    Attributes
    ----------
    layers, width, heads, words
        Number of layers, length of their vectors, attention heads, and size of the vocabulary.
    inner
        Length of the hidden layer of the MLP; 0 for four times the width.
    batch, length
        Number of sequences, and of tokens of each that a step works on.
    past
        Number of earlier tokens of each sequence whose keys and values each layer keeps.
    precision
        A dtype, or ``"mixed-float16"`` for weights of float32 under autocast, or ``"llama.cpp"``
        for its weights of float16 and activations of float32, which products take and make in
        float16. Megatron-LM, OneFlow
        and DeepSpeed have weights and activations of float16, and `Float16Adam`.
    checkpointing
        True if the backward pass computes activations again, per attention and per MLP.
    dropout
        True if attention and MLP end in dropout.
    normalises_outside
        True for the layers of DT-FM: normalisations are outside of checkpointing, and what is added
        to attention and MLP is normalised. Scores are divided, not queries, and the MLP has ReLU.
    fused_attention
        True for attention that keeps no scores.
    predicts_words
        True for logits of each next word, False for two classes of the first token.
    """

    layers: int
    width: int
    heads: int
    words: int
    inner: int = 0
    batch: int = 1
    length: int = 1
    past: int = 0
    precision: str = "float32"
    checkpointing: bool = False
    dropout: bool = False
    normalises_outside: bool = False
    fused_attention: bool = False
    predicts_words: bool = True

    @property
    def autocast(self) -> torch.dtype | None:
        """Dtype of the autocast around the step, or None."""
        is_mixed = self.precision == LLAMA_CPP or self.precision.startswith("mixed")
        return torch.float16 if is_mixed else None

    @property
    def boundary_bytes(self) -> int:
        """Bytes that one layer transfers to the next, for one micro-batch."""
        item: int = DTYPES[self.precision].itemsize
        return self.batch * self.length * self.width * item

    def step(self, mode: str = "training", optimizer: str = "Adam") -> TrainingStep:
        """Return the step of one micro-batch, without memory for its weights."""
        with torch.device("meta"):
            model = _Stack(self)
            tokens = torch.randint(self.words, (self.batch, self.length))
            labels = tokens if self.predicts_words else tokens[:, 0]
        if not self.autocast:
            model = model.to(DTYPES[self.precision])
        if self.precision == LLAMA_CPP:
            model = model.half()
        inputs = (tokens, labels.clone()) if mode == "training" else (tokens,)
        make: Any = Float16Adam
        if optimizer != Float16Adam.__name__:
            make = partial(getattr(torch.optim, optimizer), lr=1e-3)
        return TrainingStep(model, inputs, optimizer=make, mode=mode)


BERTS = {
    "bert-base": Transformer(layers=12, width=768, heads=12, words=30_522),
    "bert-large": Transformer(layers=24, width=1024, heads=16, words=30_522),
}


class _Layer(nn.Module):
    """Attention whose scores are kept, and an MLP, each behind a normalisation."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        width, inner = sizes.width, sizes.inner or 4 * sizes.width
        self.sizes = sizes
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        if sizes.past:
            shape = (sizes.batch, sizes.heads, sizes.past + sizes.length, width // sizes.heads)
            self.keys, self.values = (nn.Buffer(torch.zeros(shape)) for _ in range(2))

    def forward(self, features: Tensor) -> Tensor:
        outside = self.sizes.normalises_outside
        for norm, block in zip(self.norms, (self.attention, self.perceptron), strict=True):
            features = norm(features) if outside else features
            inner_norm = None if outside else norm
            if self.sizes.checkpointing:
                with set_checkpoint_early_stop(False):  # which PyTorch had not when it was measured
                    change = checkpoint(block, features, inner_norm, use_reentrant=False)
            else:
                change = block(features, inner_norm)
            features = features + change
        return features

    def attention(self, features: Tensor, norm: nn.Module | None) -> Tensor:
        features = features if norm is None else norm(features)
        shape = (self.sizes.batch, self.sizes.length, self.sizes.heads, -1)
        products = self.qkv(features).chunk(3, dim=-1)
        query, key, value = (product.view(shape).transpose(1, 2) for product in products)
        if self.sizes.fused_attention:
            dropout = 0.1 if self.sizes.dropout else 0.0
            attended = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
            return self.dropped(self.out(attended.transpose(1, 2).flatten(2)))
        if self.sizes.past:
            self.keys[:, :, self.sizes.past :] = key
            self.values[:, :, self.sizes.past :] = value
            key, value = self.keys, self.values
        scale = key.shape[-1] ** -0.5
        if self.sizes.normalises_outside:
            scores = query @ key.transpose(2, 3) * scale
        else:
            query = query * scale
            scores = query @ key.transpose(2, 3)
        weights = self.dropped(functional.softmax(scores, dim=3))
        return self.dropped(self.out((weights @ value).transpose(1, 2).flatten(2)))

    def perceptron(self, features: Tensor, norm: nn.Module | None) -> Tensor:
        hidden = self.up(features if norm is None else norm(features))
        activation = functional.relu if self.sizes.normalises_outside else functional.gelu
        return self.dropped(self.down(activation(hidden)))

    def dropped(self, features: Tensor) -> Tensor:
        return functional.dropout(features, 0.1) if self.sizes.dropout else features


class _Embedding(nn.Module):
    """Words and positions."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        self.sizes = sizes
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.positions = nn.Parameter(torch.zeros(sizes.length, sizes.width))

    def forward(self, tokens: Tensor) -> Tensor:
        features: Tensor = self.words(tokens) + self.positions
        return features.float() if self.sizes.precision == LLAMA_CPP else features


class _Stack(nn.Module):
    """Embeddings, layers and a head; the loss where labels are given."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = _Embedding(sizes)
        self.layers = nn.ModuleList(_Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        outputs = sizes.words if sizes.predicts_words else 2
        self.head = nn.Linear(sizes.width, outputs, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        features = self.embedding(tokens)
        for layer in self.layers:
            features = layer(features)
        if not self.sizes.predicts_words:
            features = features[:, 0]
        logits: Tensor = self.head(self.norm(features))
        if labels is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def translation_step(layers: int, query_layer: int) -> TrainingStep:
    """Return a step of gradient descent of an LSTM translator, as of TensorFlow NMT.

    Sentences have 25 words, in batches of 128. ``query_layer`` is the decoder layer that queries
    the attention. With 0, the bottom one, layers work on different words at once. With -1, the top
    one, they cannot.
    """
    step = nmt(layers=layers, steps=25, batch_size=128, units=1024, vocabulary_size=32_000)
    cast(TranslationModel, step.model).query_layer = query_layer
    return step._replace(optimizer=partial(torch.optim.SGD, lr=1.0))
