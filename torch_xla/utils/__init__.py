"""Small things that scripts share."""
