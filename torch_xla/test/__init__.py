"""What training scripts print and log, under the names of upstream's test package."""
