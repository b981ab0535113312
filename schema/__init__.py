"""The contract of the dataset: words, tables, rules and version."""
