"""Trainings of policies: hyperparameters, folders, several processes."""
