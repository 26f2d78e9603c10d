"""``report.html``: what schemes came to on a problem, in one file that opens anywhere."""
