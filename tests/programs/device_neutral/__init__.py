"""Training scripts that choose their device with torch.accelerator; none imports torch_xla."""
