"""Trainings of a policy: their settings, folder and processes."""
