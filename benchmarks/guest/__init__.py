"""Models and machines of others: held-out models next to eager CPU on quiet and on loaded machines."""
