"""Models from files that say what they compute."""
