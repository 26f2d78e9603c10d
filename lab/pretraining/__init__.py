"""How the bundled pretrained policy is made: README.md tells it."""
