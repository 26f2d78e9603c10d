"""``report.html``: the results of placers on a problem, in one file that opens anywhere."""
