"""A captured step in a form that runs op by op."""
