"""What tests ask of a training step."""

from placeto_workloads import TrainingStep


def parameter_count(step: TrainingStep) -> int:
    return sum(weights.numel() for weights in step.model.parameters())


def parameters_without_gradient(step: TrainingStep) -> list[str]:
    """Return the names of parameters that the loss does not depend on."""
    step.model(*step.example_inputs).backward()
    return [
        name
        for name, weights in step.model.named_parameters()
        if weights.grad is None or not bool((weights.grad != 0).any())
    ]
