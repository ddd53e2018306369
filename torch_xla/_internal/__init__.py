"""Internal names of upstream that libraries import."""
