"""How the policy that comes with Placeto is made: searched, learned from, and judged."""
