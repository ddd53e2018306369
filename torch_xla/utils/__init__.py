"""Exchange with other libraries and files of one tensor each, at the paths that scripts import."""
