"""How the bundled pretrained policy is made."""
