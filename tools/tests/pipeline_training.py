"""Models that are trained in the stages of an exported file, each stage in a process of its own.

`train` begins the processes, which compare losses, gradients and buffers with those of the whole
model in one process.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.multiprocessing.spawn import spawn

MICRO_BATCHES, STEPS = 4, 2
SCHEDULES: Mapping[str, Any] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class Translator(nn.Module):
    """An encoder, and a decoder with words of its own whose layers read the encoder's output."""

    def __init__(self) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"d_model": 8, "nhead": 2, "dim_feedforward": 16}
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": True}
        self.source = nn.Embedding(20, 8)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(**sizes, **options) for _ in range(2)
        )
        self.target = nn.Embedding(20, 8)
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(**sizes, **options) for _ in range(4)
        )
        self.head = nn.Linear(8, 20)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.source(source)
        for layer in self.encoder:
            memory = layer(memory)
        features = self.target(target)
        for layer in self.decoder:
            features = layer(features, memory)
        logits: Tensor = self.head(features)
        return logits


class Skips(nn.Module):
    """A U-Net of words: what layers on the way down make is added on the way up, the last first."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.down = nn.ModuleList(nn.Conv1d(8, 8, 3, padding=1) for _ in range(3))
        self.up = nn.ModuleList(nn.Conv1d(8, 8, 3, padding=1) for _ in range(3))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 20)

    def forward(self, words: Tensor) -> Tensor:
        features, skips = self.embedding(words).mT, []
        for layer in self.down:
            features = torch.relu(layer(features))
            skips.append(features)
        for layer in self.up:
            features = torch.relu(layer(features + skips.pop()))
        logits: Tensor = self.head(self.norm(features).mT)
        return logits


def llama() -> nn.Module:
    """Return a small Llama, whose first stage makes the rotary embedding of all layers."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 (may be missing)

    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=1,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


# The models, and the numbers of their inputs.
MODELS: Mapping[str, tuple[Callable[[], nn.Module], int]] = {
    "llama": (llama, 1),
    "translator": (Translator, 2),
    "skips": (Skips, 1),
}


def model_and_words(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model, each time with the same weights, and the words of a batch."""
    make, count = MODELS[name]
    torch.manual_seed(0)
    words = torch.randint(20, (count, 2 * MICRO_BATCHES, 5))
    return make().train(), tuple(words)


def loss_of(outputs: Any, target: Tensor) -> Tensor:
    """Return the loss of one micro-batch."""
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def train(files: Mapping[str, Path], stages: int, schedules: Sequence[str]) -> None:
    """Train models of some files in as many processes as stages; an error of one is raised."""
    arguments = files, stages, schedules
    spawn(_train_stages, arguments, nprocs=stages)  # type: ignore[no-untyped-call]


def run_page(block: str, file: Path, stages: int) -> None:
    """Run the lines of a page, which train with a file, in as many processes as stages."""
    spawn(_run_page, (block, file, stages), nprocs=stages)  # type: ignore[no-untyped-call]


def _run_page(index: int, block: str, file: Path, stages: int) -> None:
    torch.set_num_threads(1)
    sys.path.insert(0, str(file.parent))
    meeting = f"file://{file}.meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=index, world_size=stages)
    model, (words,) = model_and_words("skips")
    names: dict[str, Any] = {
        "torch": torch,
        "Schedule1F1B": Schedule1F1B,
        "loss_fn": loss_of,
        "model": model,
        "rank": index,
        "tokens": words,
        "batches": [(words, words)] * STEPS,
    }
    exec(block.replace('"cuda"', '"cpu"'), names)  # noqa: S102 (what the user would run)
    whole, _ = model_and_words("skips")
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for row in words.chunk(len(words)):
            (loss_of(whole(row), row) / len(words)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    weights = dict(names["stage"].submod.named_parameters())
    expected = {name: whole.get_parameter(name) for name in weights}
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-5)
    distributed.destroy_process_group()


def _train_stages(
    index: int, files: Mapping[str, Path], stages: int, schedules: Sequence[str]
) -> None:
    torch.set_num_threads(1)
    for name, file in files.items():
        spec = importlib.util.spec_from_file_location("exported", file)
        assert spec is not None
        assert spec.loader is not None
        exported = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(exported)
        assert len(exported.DEVICES) == stages
        meeting = f"file://{file}.meeting"
        distributed.init_process_group("gloo", init_method=meeting, rank=index, world_size=stages)
        for schedule in schedules:
            model, batch = model_and_words(name)
            example = tuple(words[:2] for words in batch)
            stage = exported.placed_stage(model, index, torch.device("cpu"), example)
            training_schedule = SCHEDULES[schedule](stage, MICRO_BATCHES, loss_fn=loss_of)
            _train_stage(stage, training_schedule, name)
        distributed.destroy_process_group()


def _train_stage(stage: Any, schedule: Any, name: str) -> None:
    """Train a stage, and compare it with the same part of the whole model after each step."""
    _, batch = model_and_words(name)
    optimizer = torch.optim.SGD(stage.submod.parameters(), 0.1)
    for expected, gradients, buffers in _whole_steps(name):
        losses: list[Tensor] = []
        optimizer.zero_grad()
        inputs = batch if stage.is_first else ()
        schedule.step(*inputs, **({"target": batch[-1], "losses": losses} if stage.is_last else {}))
        if stage.is_last:
            torch.testing.assert_close(torch.stack(losses), expected, rtol=1e-5, atol=1e-5)
        weights = {key: weight.grad for key, weight in stage.submod.named_parameters()}
        assert weights
        same = {key: gradients[key] for key in weights}
        torch.testing.assert_close(weights, same, rtol=1e-5, atol=1e-5)
        for key, buffer in stage.submod.named_buffers():
            torch.testing.assert_close(buffer, buffers[key], rtol=1e-5, atol=1e-5)
        optimizer.step()


def _whole_steps(name: str) -> list[tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]:
    """Return losses, gradients and buffers of the steps of the whole model."""
    model, batch = model_and_words(name)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses = []
        for words in zip(*(tensor.chunk(MICRO_BATCHES) for tensor in batch), strict=True):
            loss = loss_of(model(*words), words[-1])
            (loss / MICRO_BATCHES).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        gradients = {
            weight_name: weight.grad.clone()
            for weight_name, weight in model.named_parameters()
            if weight.grad is not None
        }
        buffers = {buffer_name: buffer.clone() for buffer_name, buffer in model.named_buffers()}
        steps.append((torch.stack(losses), gradients, buffers))
        optimizer.step()
    return steps
