"""The protocols that join the packages: what evaluators, placers and steps to be run are."""
