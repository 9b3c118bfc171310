"""What SageMaker's managed toolkit is asked for: the settings, the exact requests, and what a job there comes to.
Pure."""
