"""Small models of all kinds that people train on GPUs: written out, and of a library."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from captured_models import Net
from placeto_capture.tracing.default_loss import default_loss
from placeto_workloads import library_step
from small_transformers import SMALL

Inputs = tuple[Tensor, ...] | Mapping[str, Any]
Made = tuple[nn.Module, Inputs, Callable[[Any], Tensor]]


def squares(outputs: Tensor) -> Tensor:
    """Return the mean square of outputs in float32."""
    return outputs.float().square().mean()


def sinusoids(positions: Tensor) -> Tensor:
    """Return 8 numbers for each position."""
    angles = positions[..., None] * torch.exp(-torch.arange(4, device=positions.device) / 4)
    return torch.cat([angles.sin(), angles.cos()], -1)


def residual(width: int, out_width: int) -> nn.Module:
    """Return a block of a diffusion model, which is told the time."""

    def forward(net: Any, image: Tensor, time: Tensor) -> Any:
        hidden = net.first(F.silu(net.first_norm(image)))
        hidden = hidden + net.time(F.silu(time))[:, :, None, None]
        hidden = net.second(F.dropout(F.silu(net.second_norm(hidden)), 0.1))
        return net.skip(image) + hidden

    return Net(
        forward,
        first_norm=nn.GroupNorm(2, width),
        first=nn.Conv2d(width, out_width, 3, padding=1),
        time=nn.Linear(8, out_width),
        second_norm=nn.GroupNorm(2, out_width),
        second=nn.Conv2d(out_width, out_width, 3, padding=1),
        skip=nn.Conv2d(width, out_width, 1),
    )


def diffusion() -> nn.Module:
    def forward(net: Any, image: Tensor, times: Tensor) -> Any:
        time = net.time(sinusoids(times))
        wide = net.before(net.enter(image), time)
        low = net.middle(net.down(wide), time)
        query, key, value = net.project(net.norm(low).flatten(2)).chunk(3, 1)
        weights = torch.softmax(query.mT @ key / 4, -1)
        low = low + (value @ weights.mT).unflatten(2, low.shape[2:])
        return net.leave(net.after(torch.cat([net.up(low), wide], 1), time))

    return Net(
        forward,
        time=nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8)),
        enter=nn.Conv2d(3, 8, 3, padding=1),
        before=residual(8, 8),
        down=nn.Conv2d(8, 16, 3, 2, 1),
        middle=residual(16, 16),
        norm=nn.GroupNorm(2, 16),
        project=nn.Conv1d(16, 48, 1),
        up=nn.ConvTranspose2d(16, 8, 2, 2),
        after=residual(16, 8),
        leave=nn.Conv2d(8, 3, 1),
    )


def u_net() -> nn.Module:
    def stage(width: int, out_width: int) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(width, out_width, 3, padding=1, bias=False), nn.GroupNorm(2, out_width)),
            *(nn.ReLU(inplace=True), nn.Conv2d(out_width, out_width, 3, padding=1, bias=False)),
            *(nn.BatchNorm2d(out_width), nn.LeakyReLU(0.1)),
        )

    def forward(net: Any, image: Tensor) -> Any:
        wide = net.before(image)
        low = net.middle(F.max_pool2d(wide, 2))
        high = F.interpolate(low, size=wide.shape[2:], mode="bilinear", align_corners=True)
        return net.leave(net.after(torch.cat([high, wide], 1)))

    stages = {"before": stage(3, 8), "middle": stage(8, 16), "after": stage(24, 8)}
    return Net(forward, **stages, leave=nn.Conv2d(8, 2, 1))


def lstm(net: Any, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    enter, forget, new, leave = (net.enter(inputs) + net.again(hidden)).chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(leave) * torch.tanh(cell), cell


def gru(net: Any, inputs: Tensor, hidden: Tensor, _cell: Tensor) -> tuple[Tensor, Tensor]:
    reset, update, new = net.enter(inputs).chunk(3, -1)
    again_reset, again_update, again_new = net.again(hidden).chunk(3, -1)
    update = torch.sigmoid(update + again_update)
    new = torch.tanh(new + torch.sigmoid(reset + again_reset) * again_new)
    hidden = (1 - update) * new + update * hidden
    return hidden, hidden


def recurrent(cell: Callable[..., tuple[Tensor, Tensor]], gates: int) -> nn.Module:
    """Return a network with a cell that is written out, as GPUs have one op for torch's."""

    def forward(net: Any, words: Tensor) -> Any:
        inputs = net.embed(words)
        hidden = state = inputs.new_zeros(len(words), 8)
        outputs = []
        for step in inputs.unbind(1):
            hidden, state = cell(net, step, hidden, state)
            outputs.append(hidden)
        return net.leave(torch.stack(outputs, 1))

    layers = {"enter": nn.Linear(6, gates * 8), "again": nn.Linear(8, gates * 8)}
    return Net(forward, embed=nn.Embedding(20, 6), **layers, leave=nn.Linear(8, 20))


def experts() -> nn.Module:
    """Return a mixture of 4 experts, of which each takes 3 rows at most."""

    def forward(net: Any, rows: Tensor) -> Any:
        inputs = net.norm(rows)
        scores = net.gate(inputs).softmax(-1)
        weights, chosen = scores.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        choices = F.one_hot(chosen, 4).to(weights.dtype)
        places = torch.cumsum(choices.flatten(0, 1), 0) - 1
        sent = choices * (places < 3).view(*chosen.shape, 4)
        combined = (sent * weights[..., None]).sum(1)
        batches = torch.einsum("re,rw->erw", (combined > 0).to(inputs.dtype), inputs)
        outputs = torch.bmm(F.gelu(torch.bmm(batches, net.up)), net.down)
        balance = (scores.mean(0) * sent.sum(1).mean(0)).sum()
        return rows + torch.einsum("re,erw->rw", combined, outputs) + balance

    up, down = nn.Parameter(torch.randn(4, 8, 16)), nn.Parameter(torch.randn(4, 16, 8))
    return Net(forward, norm=nn.LayerNorm(8), gate=nn.Linear(8, 4, bias=False), up=up, down=down)


def recommender() -> nn.Module:
    def forward(net: Any, numbers: Tensor, words: Tensor) -> Any:
        dense = net.bottom(numbers)
        bags = [table(words[:, index]) for index, table in enumerate(net.tables)]
        features = torch.stack([dense, *bags], 1)
        rows, columns = torch.tril_indices(4, 4, -1, device=features.device)
        products = torch.bmm(features, features.mT)[:, rows, columns]
        return net.top(torch.cat([dense, products], 1))

    tables = nn.ModuleList(nn.EmbeddingBag(30, 8, mode=mode) for mode in ("sum", "mean", "max"))
    bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
    top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))
    return Net(forward, tables=tables, bottom=bottom, top=top)


def mixer() -> nn.Module:
    def forward(net: Any, image: Tensor) -> Any:
        places = net.patches(image).flatten(2).mT
        places = places + net.between(net.norms[0](places).mT).mT
        places = places + net.within(net.norms[1](places))
        return net.leave(net.norms[2](places).mean(1))

    return Net(
        forward,
        patches=nn.Conv2d(3, 8, 4, 4),
        norms=nn.ModuleList(nn.LayerNorm(8) for _ in range(3)),
        between=nn.Sequential(nn.Linear(16, 12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, 16)),
        within=nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8)),
        leave=nn.Linear(8, 5),
    )


def relative() -> nn.Module:
    """Return attention by distances, with places from a running sum, as of Transformer-XL."""

    def forward(net: Any, words: Tensor) -> Any:
        inputs = net.embed(words)
        places = torch.cumsum(torch.ones_like(words, dtype=inputs.dtype), 1) - 1
        distances = net.distance(sinusoids(places[0])).unflatten(-1, (2, 4))
        query, key, value = (x.unflatten(-1, (2, 4)) for x in net.project(inputs).chunk(3, -1))
        near = torch.einsum("bqhw,bkhw->bhqk", query + net.bias, key)
        far = torch.einsum("bqhw,khw->bhqk", query, distances)
        length = words.shape[1]
        far = F.pad(far, (1, 0)).view(-1, 2, length + 1, length)[:, :, 1:].reshape(near.shape)
        later = torch.ones(length, length, dtype=torch.bool, device=words.device).triu(1)
        weights = ((near + far) / 2).masked_fill(later, -1e4).softmax(-1)
        attended = torch.einsum("bhqk,bkhw->bqhw", weights, value).flatten(2)
        return net.leave(net.norm(inputs + net.join(attended)))

    layers = {"project": nn.Linear(8, 24), "distance": nn.Linear(8, 8), "join": nn.Linear(8, 8)}
    ends = {"embed": nn.Embedding(20, 8), "leave": nn.Linear(8, 20)}
    return Net(
        forward, **ends, **layers, norm=nn.LayerNorm(8), bias=nn.Parameter(torch.zeros(2, 4))
    )


def conformer() -> nn.Module:
    def forward(net: Any, sound: Tensor) -> Any:
        hidden = net.enter(net.shorten(sound[:, None]).transpose(1, 2).flatten(2))
        hidden = hidden + net.feed(hidden) / 2
        inputs = net.norm(hidden)
        hidden = hidden + net.attend(inputs, inputs, inputs, need_weights=False)[0]
        gated = F.glu(net.up(hidden.mT), 1)
        hidden = hidden + net.down(F.silu(net.batch_norm(net.across(gated)))).mT
        return net.leave(hidden).log_softmax(-1)

    return Net(
        forward,
        shorten=nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 4, 3, 2), nn.ReLU()),
        enter=nn.Linear(12, 8),
        feed=nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)),
        norm=nn.LayerNorm(8),
        attend=nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True),
        up=nn.Conv1d(8, 16, 1),
        across=nn.Conv1d(8, 8, 3, padding=1, groups=8),
        batch_norm=nn.BatchNorm1d(8),
        down=nn.Conv1d(8, 8, 1),
        leave=nn.Linear(8, 10),
    )


def inverted() -> nn.Module:
    """Return a block of an EfficientNet, with squeeze and excitation."""

    def forward(net: Any, image: Tensor) -> Any:
        image = net.enter(image)
        hidden = net.across(image)
        image = image + net.project(hidden * net.squeeze(hidden))
        return net.leave(F.adaptive_avg_pool2d(image, 1).flatten(1))

    def normalised(convolution: nn.Module, *more: nn.Module) -> nn.Module:
        return nn.Sequential(convolution, nn.BatchNorm2d(8), *more)

    squeeze = nn.Conv2d(8, 2, 1), nn.SiLU(), nn.Conv2d(2, 8, 1), nn.Sigmoid()
    return Net(
        forward,
        enter=normalised(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.SiLU(inplace=True)),
        across=normalised(nn.Conv2d(8, 8, 5, padding=2, groups=8, bias=False), nn.Hardswish()),
        squeeze=nn.Sequential(nn.AdaptiveAvgPool2d(1), *squeeze),
        project=normalised(nn.Conv2d(8, 8, 1, bias=False)),
        leave=nn.Linear(8, 5),
    )


def shared_keys() -> nn.Module:
    """Return attention of 4 heads, of which two share their keys and values."""

    def forward(net: Any, rows: Tensor) -> Any:
        query = net.query(rows).unflatten(-1, (4, 8)).transpose(1, 2)
        keys = net.keys(rows).unflatten(-1, (4, 8)).transpose(1, 2)
        key, value = keys.chunk(2, 1)
        attended = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        return net.join(attended.transpose(1, 2).flatten(2))

    layers = {name: nn.Linear(32, 32) for name in ("query", "keys", "join")}
    return Net(forward, **layers)


def windows() -> nn.Module:
    """Return attention within shifted windows and a merging of patches, as of a Swin."""

    def forward(net: Any, image: Tensor) -> Any:
        image = net.patches(image).permute(0, 2, 3, 1)
        batch, _, _, width = image.shape
        shifted = torch.roll(net.norm(image), (-2, -2), (1, 2))
        split = shifted.view(batch, 2, 4, 2, 4, width).transpose(2, 3).reshape(-1, 16, width)
        query, key, value = net.project(split).view(-1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
        bias = net.bias.expand(len(query), -1, -1, -1)
        attended = F.scaled_dot_product_attention(query, key, value, bias).transpose(1, 2)
        joined = net.join(attended.reshape(-1, 16, width)).view(batch, 2, 2, 4, 4, width)
        image = image + torch.roll(joined.transpose(2, 3).reshape(image.shape), (2, 2), (1, 2))
        corners = [image[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return net.merge(net.merged_norm(torch.cat(corners, -1)))

    return Net(
        forward,
        patches=nn.Conv2d(3, 8, 2, 2),
        norm=nn.LayerNorm(8),
        project=nn.Linear(8, 24),
        bias=nn.Parameter(torch.zeros(2, 16, 16)),
        join=nn.Linear(8, 8),
        merged_norm=nn.LayerNorm(32),
        merge=nn.Linear(32, 16, bias=False),
    )


def larger_images() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.PReLU()),
        *(nn.Conv2d(8, 12, 3, padding=1), nn.PixelShuffle(2), nn.Hardtanh(0, 1)),
    )


def video() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv3d(3, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2)),
        nn.ConvTranspose3d(4, 2, 2, 2),
    )


def spectrum() -> nn.Module:
    def forward(net: Any, rows: Tensor) -> Any:
        parts = torch.fft.rfft(net.layer(rows).float())
        filtered = torch.complex(parts.real * net.filters[0], parts.imag * net.filters[1])
        return torch.fft.irfft(filtered, n=8)

    return Net(forward, layer=nn.Linear(8, 8), filters=nn.Parameter(torch.randn(2, 5)))


IMAGES, WORDS = torch.randn(2, 3, 8, 8), torch.randint(20, (3, 5))
LARGE_IMAGES, VIDEO = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 4, 4, 4)
WRITTEN: dict[str, Callable[[], Made]] = {
    "diffusion": lambda: (diffusion(), (IMAGES, torch.rand(2)), squares),
    "U-Net": lambda: (u_net(), (IMAGES,), squares),
    "LSTM": lambda: (recurrent(lstm, 4), (WORDS,), squares),
    "GRU": lambda: (recurrent(gru, 3), (WORDS,), squares),
    "experts": lambda: (experts(), (torch.randn(6, 8),), squares),
    "recommender": lambda: (
        recommender(),
        (torch.randn(4, 5), torch.randint(30, (4, 3, 2))),
        squares,
    ),
    "mixer": lambda: (mixer(), (LARGE_IMAGES,), squares),
    "relative attention": lambda: (relative(), (WORDS,), squares),
    "conformer": lambda: (conformer(), (torch.randn(2, 15, 15),), squares),
    "inverted bottleneck": lambda: (inverted(), (IMAGES,), squares),
    "shared keys": lambda: (shared_keys(), (torch.randn(2, 8, 32),), squares),
    "shifted windows": lambda: (windows(), (LARGE_IMAGES,), squares),
    "larger images": lambda: (larger_images(), (IMAGES,), squares),
    "video": lambda: (video(), (VIDEO,), squares),
    "spectrum": lambda: (spectrum(), (torch.randn(64, 8),), squares),
}
IMAGE_SIZES = {"hidden_sizes": [4, 8], "depths": [1, 1], "embedding_size": 4}
LIBRARY: Mapping[str, Mapping[str, Any]] = {
    **{name: SMALL[name] for name in SMALL if name != "mixtral"},  # which picks by values
    "swin": {"depths": [1, 1], "num_heads": [2, 2], "embed_dim": 8, "image_size": 16}
    | {"patch_size": 2, "window_size": 4},
    "resnet": {**IMAGE_SIZES, "layer_type": "basic"},
    "regnet": {**IMAGE_SIZES, "groups_width": 2},
    "efficientnet": {"image_size": 32, "width_coefficient": 0.1, "depth_coefficient": 0.1}
    | {"hidden_dim": 128},
}
IS_OF_IMAGES = {"vit", "convnext", "swin", "resnet", "regnet", "efficientnet"}


def library_model(name: str) -> Made:
    """Return a small model of transformers with its inputs and its loss."""
    sizes = {"batch_size": 2, "device": "cpu", "seed": 3, **LIBRARY[name]}
    if name not in IS_OF_IMAGES:
        sizes["sequence_length"] = 6
    step = library_step(f"transformers:{name}", **sizes)
    return step.model, step.example_inputs, step.loss_fn or default_loss
