"""Progress output of training scripts, under the names of upstream's test package."""
