"""``report.html``: what placers came to on a problem, in one file that opens anywhere."""
