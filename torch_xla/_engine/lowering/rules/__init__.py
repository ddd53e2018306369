"""Lowering rules, one module per operator family; `load_rules` imports all of them."""
