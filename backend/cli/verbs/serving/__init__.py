"""Commands for what is served, here and on SageMaker."""
