"""The check of a built folder, local or remote: every label derived again from what the rows themselves say.

`run.check` is the way in. One module per group of checks: `files` (digests), `structure` (schema, rules), `transcript` (rewards, totals),
`candidates` (times, sources, evidence), `identity` (regenerate, holdout); `store` reads the folder and `report` keeps what was found.
"""
