"""How the bundled pretrained policy is made: ``python -m placeto_experiments.pretraining``."""
