"""Programs for accelerators that are not here: compiled for described devices, and what that tells of them."""
